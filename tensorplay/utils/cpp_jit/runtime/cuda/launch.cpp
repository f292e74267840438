// Launches embedded kernels through the CUDA driver; see tensorplay/cuda_launch.h. Compiled once and
// linked into the libraries that carry kernels. The driver is opened when the first one is launched,
// so a library can be built and loaded where there is none, and says then what is missing.
#include <dlfcn.h>
#include <tensorplay/cuda_launch.h>
#include <tvm/ffi/extra/c_env_api.h>

#include <cstdio>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <vector>

namespace {

// The part of the driver's interface that is used; its values are fixed by its binary interface.
using Status = int;
using Device = int;
using Context = void*;
using Module = void*;
using Function = void*;
constexpr Status kInvalidImage = 200;
constexpr Status kNoBinary = 209;
constexpr Status kUnsupportedPtx = 222;
constexpr Status kNotFound = 500;
constexpr Status kIllegalAddress = 700;
constexpr Status kOutOfResources = 701;
constexpr int kMajor = 75;          // device attributes
constexpr int kMinor = 76;
constexpr int kDynamicShared = 8;   // function attribute
constexpr uint32_t kSharedByDefault = 48 * 1024;
constexpr int kConfigArguments = 8;

#define TP_DRIVER_FUNCTIONS(F)                                                        \
  F(Init, "cuInit", (unsigned))                                                       \
  F(DriverGetVersion, "cuDriverGetVersion", (int*))                                   \
  F(DeviceGetCount, "cuDeviceGetCount", (int*))                                       \
  F(DeviceGet, "cuDeviceGet", (Device*, int))                                         \
  F(DeviceGetAttribute, "cuDeviceGetAttribute", (int*, int, Device))                  \
  F(DevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain", (Context*, Device))           \
  F(CtxPushCurrent, "cuCtxPushCurrent_v2", (Context))                                 \
  F(CtxPopCurrent, "cuCtxPopCurrent_v2", (Context*))                                  \
  F(ModuleLoadData, "cuModuleLoadData", (Module*, const void*))                       \
  F(ModuleGetFunction, "cuModuleGetFunction", (Function*, Module, const char*))       \
  F(FuncSetAttribute, "cuFuncSetAttribute", (Function, int, int))                     \
  F(LaunchKernel, "cuLaunchKernel",                                                   \
    (Function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,  \
     void*, void**, void**))                                                          \
  F(GetErrorName, "cuGetErrorName", (Status, const char**))                           \
  F(GetErrorString, "cuGetErrorString", (Status, const char**))

struct Driver {
  std::string problem;  // empty where kernels can run
  int version = 0;
  int devices = 0;
#define TP_MEMBER(Name, Symbol, Parameters) Status(*Name) Parameters = nullptr;
  TP_DRIVER_FUNCTIONS(TP_MEMBER)
#undef TP_MEMBER

  Driver() {
    void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library) {
      const char* said = dlerror();
      problem = std::string("no NVIDIA driver was found (") + (said ? said : "libcuda.so.1") + ")";
      return;
    }
#define TP_FIND(Name, Symbol, Parameters)                                             \
    Name = reinterpret_cast<Status(*) Parameters>(dlsym(library, Symbol));            \
    if (!Name && problem.empty()) problem = "the driver is too old: it lacks " Symbol;
    TP_DRIVER_FUNCTIONS(TP_FIND)
#undef TP_FIND
    if (!problem.empty()) return;
    DriverGetVersion(&version);
    Status status = Init(0);
    if (!status) status = DeviceGetCount(&devices);
    if (status) {
      problem = "no GPU that CUDA can use (" + text(status) + "; " + supports() + ")";
    } else if (devices == 0) {
      problem = "no GPU that CUDA can use (" + supports() + ")";
    }
  }

  std::string text(Status status) const {
    const char *name = nullptr, *words = nullptr;
    if (GetErrorName(status, &name) != 0 || !name) name = "CUDA error";
    if (GetErrorString(status, &words) != 0 || !words) words = "unknown";
    return std::string(name) + " " + std::to_string(status) + ": " + words;
  }
  std::string supports() const { return "the driver supports CUDA " + dotted(version); }
  static std::string dotted(int version) {
    return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
  }
};

const Driver& driver() {
  static const Driver found;
  return found;
}

// A program on one device.
struct Loaded {
  Context context = nullptr;
  Module module = nullptr;
  int architecture = 0;
  std::vector<Function> functions;
};

struct State {
  std::mutex mutex;
  std::map<int, Loaded> devices;
};

std::mutex state_mutex;

State& state_of(tp_cuda_program* program) {
  std::lock_guard<std::mutex> lock(state_mutex);
  if (!program->state) program->state = new State;  // as long as the library, which stays loaded
  return *static_cast<State*>(program->state);
}

int fail(const char* kind, const char* kernel, const std::string& message) {
  return tp_rt_raise(kind, ("[" + std::string(kernel) + "] " + message).c_str());
}

std::string built_for(const tp_cuda_program& program) {
  return std::string(" It was built for ") + program.built_for + ".";
}

class Current {  // makes a device's context current for a while
 public:
  explicit Current(Context context) : status(driver().CtxPushCurrent(context)) {}
  ~Current() {
    Context ignored = nullptr;
    if (!status) driver().CtxPopCurrent(&ignored);
  }
  const Status status;
};

// How well an image fits a device of an architecture: 0 not at all, then the more the better.
int rank(const tp_cuda_image& image, int architecture) {
  if (image.kind == TP_CUDA_FATBIN) return 1;
  if (image.architecture > architecture) return 0;
  if (image.kind == TP_CUDA_PTX) return 1;
  if (image.variant == 'a') return image.architecture == architecture ? 4000 : 0;
  if (image.architecture / 10 != architecture / 10) return 0;
  return image.variant == 'f' ? 3000 + image.architecture : 1000 + image.architecture;
}

int load(tp_cuda_program* program, const char* kernel, int device, Loaded* loaded) {
  const Driver& cuda = driver();
  Device handle = 0;
  int major = 0, minor = 0;
  Status status = cuda.DeviceGet(&handle, device);
  if (!status) status = cuda.DeviceGetAttribute(&major, kMajor, handle);
  if (!status) status = cuda.DeviceGetAttribute(&minor, kMinor, handle);
  if (!status) status = cuda.DevicePrimaryCtxRetain(&loaded->context, handle);
  if (status) {
    return fail("RuntimeError", kernel,
                "cuda:" + std::to_string(device) + " cannot be used: " + cuda.text(status) + ".");
  }
  loaded->architecture = 10 * major + minor;
  std::string gpu = "sm_" + std::to_string(loaded->architecture);
  std::multimap<int, const tp_cuda_image*, std::greater<int>> fitting;
  for (int i = 0; i < program->image_count; ++i) {
    if (int fit = rank(program->images[i], loaded->architecture)) {
      fitting.emplace(fit, &program->images[i]);
    }
  }
  Current current(loaded->context);
  status = fitting.empty() ? kNoBinary : current.status;
  if (!current.status) {
    for (const auto& item : fitting) {
      status = cuda.ModuleLoadData(&loaded->module, item.second->data);
      if (!status) break;
    }
  }
  if (!status) {
    loaded->functions.assign(program->kernel_count, nullptr);
    return 0;
  }
  std::string message = "cannot run on cuda:" + std::to_string(device) + " (" + gpu + "): ";
  bool newer = program->toolkit > cuda.version && cuda.version > 0;
  if (status == kNoBinary) {
    message += "no kernel image for this GPU." + built_for(*program) +
               " Set TVM_FFI_CUDA_ARCH_LIST=" + std::to_string(major) + "." +
               std::to_string(minor) + " and build it again.";
  } else if (newer && (status == kUnsupportedPtx || status == kInvalidImage)) {
    message += "the driver is too old: it supports CUDA " + Driver::dotted(cuda.version) +
               ", the kernels were compiled by " + Driver::dotted(program->toolkit) + " (" +
               cuda.text(status) + ")." + built_for(*program) +
               " Update the driver, or set TVM_FFI_CUDA_ARCH_LIST=" + std::to_string(major) + "." +
               std::to_string(minor) + " and build it again.";
  } else {
    message += cuda.text(status) + "." + built_for(*program);
  }
  return fail("RuntimeError", kernel, message);
}

std::string sizes(const uint32_t* size) {
  return "(" + std::to_string(size[0]) + ", " + std::to_string(size[1]) + ", " +
         std::to_string(size[2]) + ")";
}

int run(tp_cuda_program* program, int32_t number, const char* title, const tp_cuda_config& config,
        int device, void** values) {
  const Driver& cuda = driver();
  const tp_cuda_kernel& kernel = program->kernels[number];
  State& state = state_of(program);
  Context context;
  Function function;
  int architecture;
  {
    std::lock_guard<std::mutex> lock(state.mutex);
    Loaded& loaded = state.devices[device];
    if (!loaded.module && load(program, title, device, &loaded) != 0) return -1;
    context = loaded.context;
    architecture = loaded.architecture;
    if (!loaded.functions[number]) {
      Current current(context);
      Status status = current.status;
      if (!status) {
        status = cuda.ModuleGetFunction(&loaded.functions[number], loaded.module, kernel.symbol);
      }
      if (status) {
        return fail("RuntimeError", title,
                    (status == kNotFound ? "is not in its own binary: " : "cannot be loaded: ") +
                        cuda.text(status) + ".");
      }
    }
    function = loaded.functions[number];
  }
  Current current(context);
  Status status = current.status;
  if (!status && config.shared > kSharedByDefault) {
    status = cuda.FuncSetAttribute(function, kDynamicShared, static_cast<int>(config.shared));
  }
  if (!status) {
    void* stream = config.has_stream ? config.stream : TVMFFIEnvGetStream(kDLCUDA, device);
    status = cuda.LaunchKernel(function, config.grid[0], config.grid[1], config.grid[2],
                               config.block[0], config.block[1], config.block[2], config.shared,
                               stream, values, nullptr);
  }
  if (!status) return 0;
  const char* earlier = status >= kIllegalAddress && status != kOutOfResources
                            ? " An earlier kernel may have caused it."
                            : "";
  return fail("RuntimeError", title,
              "the launch failed: " + cuda.text(status) + "." + earlier + " Grid " +
                  sizes(config.grid) + ", block " + sizes(config.block) + ", " +
                  std::to_string(config.shared) + " bytes of dynamic shared memory, on cuda:" +
                  std::to_string(device) + " (sm_" + std::to_string(architecture) + ")." +
                  built_for(*program));
}

int usable(const tp_cuda_program& program, const char* kernel) {
  if (driver().problem.empty()) return 0;
  return fail("RuntimeError", kernel,
              "cannot run here: " + driver().problem + "." + built_for(program));
}

std::string device_name(int32_t type, int32_t id) {
  switch (type) {
    case kDLCPU: return "cpu";
    case kDLCUDAHost: return "pinned cpu memory";
    case kDLCUDA:
    case kDLCUDAManaged: return "cuda:" + std::to_string(id);
    case kDLROCM: return "rocm:" + std::to_string(id);
    default: return "another device";
  }
}

// Notes the device of a tensor, which must be that of those before it.
int check_device(const char* kernel, const std::string& shown, int32_t type, int32_t id,
                 int32_t* device) {
  if (type != kDLCUDA && type != kDLCUDAManaged) {
    return fail("ValueError", kernel,
                "argument " + shown + ": expected a tensor on cuda, got one on " +
                    device_name(type, id) + ". Move it to the GPU.");
  }
  if (*device >= 0 && id != *device) {
    return fail("ValueError", kernel,
                "argument " + shown + ": expected a tensor on cuda:" + std::to_string(*device) +
                    " as the ones before, got one on cuda:" + std::to_string(id) +
                    ". Move it there.");
  }
  *device = id;
  return 0;
}

int check_index(const char* kernel, int32_t device) {
  int devices = driver().devices;
  if (device >= 0 && device < devices) return 0;
  std::string present = devices == 1 ? "cuda:0" : "cuda:0 to cuda:" + std::to_string(devices - 1);
  return fail("ValueError", kernel, "expected tensors on " + present + ", which this machine has, "
              "got them on cuda:" + std::to_string(device) + ".");
}

std::string dtype_name(int code, int bits) {
  std::string width = std::to_string(bits);
  switch (code) {
    case kDLInt: return "int" + width;
    case kDLUInt: return "uint" + width;
    case kDLFloat: return "float" + width;
    case kDLBfloat: return "bfloat" + width;
    case kDLComplex: return "complex" + width;
    case kDLBool: return "bool";
    default: return "dtype code " + std::to_string(code) + " of " + width + " bits";
  }
}

bool is_contiguous(const DLTensor& tensor) {
  if (!tensor.strides) return true;
  int64_t step = 1;
  for (int i = tensor.ndim - 1; i >= 0; --i) {
    if (tensor.shape[i] == 0) return true;
    if (tensor.shape[i] != 1 && tensor.strides[i] != step) return false;
    step *= tensor.shape[i];
  }
  return true;
}

// Where the values of a call live until the driver has copied them.
union Value {
  void* pointer;
  int64_t integer;
  float single;
  double real;
  bool truth;
};

class Call {
 public:
  Call(const tp_cuda_kernel& kernel, const TVMFFIAny* args) : kernel_(kernel), args_(args) {}

  // Checks every argument and writes its value; `device` is that of the tensors or -1.
  int read(std::vector<Value>* values, int32_t* device) {
    for (int32_t i = 0; i < kernel_.count; ++i) {
      if (read_one(i, &(*values)[i], device) != 0) return -1;
    }
    return 0;
  }

 private:
  std::string shown(int32_t i) const {
    const char* name = kernel_.parameters[i].name;
    return *name ? "'" + std::string(name) + "'" : "#" + std::to_string(i);
  }
  int refuse(const char* kind, int32_t i, const std::string& text) const {
    return fail(kind, kernel_.name, "argument " + shown(i) + ": expected " + text);
  }
  int wrong_kind(int32_t i, const char* expected) const {
    return refuse("TypeError", i, std::string(expected) + " (" + kernel_.parameters[i].type +
                  "), got " + type_name(args_[i].type_index) + ".");
  }
  static std::string type_name(int32_t index) {
    switch (index) {
      case kTVMFFINone: return "None";
      case kTVMFFIInt: return "an int";
      case kTVMFFIBool: return "a bool";
      case kTVMFFIFloat: return "a float";
      case kTVMFFITensor:
      case kTVMFFIDLTensorPtr: return "a tensor";
      case kTVMFFISmallStr:
      case kTVMFFIStr:
      case kTVMFFIRawStr: return "a str";
      default: return "another type";
    }
  }

  int read_one(int32_t i, Value* value, int32_t* device) {
    const tp_cuda_parameter& parameter = kernel_.parameters[i];
    const TVMFFIAny& any = args_[i];
    bool whole = any.type_index == kTVMFFIInt || any.type_index == kTVMFFIBool;
    switch (parameter.kind) {
      case TP_CUDA_TENSOR:
        return read_tensor(i, value, device);
      case TP_CUDA_FLOAT: {
        if (!whole && any.type_index != kTVMFFIFloat) return wrong_kind(i, "a number");
        double real = whole ? static_cast<double>(any.v_int64) : any.v_float64;
        if (parameter.bits == 32) {
          value->single = static_cast<float>(real);
        } else {
          value->real = real;
        }
        return 0;
      }
      case TP_CUDA_BOOL:
        if (!whole) return wrong_kind(i, "a bool");
        value->truth = any.v_int64 != 0;
        return 0;
      default:
        if (!whole) return wrong_kind(i, "an integer");
        return read_integer(i, any.v_int64, value);
    }
  }

  int read_integer(int32_t i, int64_t given, Value* value) {
    const tp_cuda_parameter& parameter = kernel_.parameters[i];
    bool is_signed = parameter.kind == TP_CUDA_INT;
    bool fits = is_signed || given >= 0;
    if (parameter.bits < 64) {
      int64_t limit = int64_t{1} << (parameter.bits - (is_signed ? 1 : 0));
      fits = given < limit && given >= (is_signed ? -limit : 0);
    }
    if (!fits) {
      return refuse("ValueError", i, "an integer that fits " +
                    dtype_name(is_signed ? kDLInt : kDLUInt, parameter.bits) + ", got " +
                    std::to_string(given) + ".");
    }
    value->integer = given;  // little endian: the narrower types are its first bytes
    return 0;
  }

  int read_tensor(int32_t i, Value* value, int32_t* device) {
    const tp_cuda_parameter& parameter = kernel_.parameters[i];
    const TVMFFIAny& any = args_[i];
    if (any.type_index != kTVMFFITensor && any.type_index != kTVMFFIDLTensorPtr) {
      return wrong_kind(i, "a tensor");
    }
    const DLTensor* tensor = any.type_index == kTVMFFITensor
                                 ? TVMFFITensorGetDLTensorPtr(any.v_obj)
                                 : static_cast<const DLTensor*>(any.v_ptr);
    DLDevice at = tensor->device;
    if (check_device(kernel_.name, shown(i), at.device_type, at.device_id, device) != 0) return -1;
    DLDataType dtype = tensor->dtype;
    bool same = dtype.code == parameter.code && dtype.bits == parameter.bits && dtype.lanes == 1;
    if (parameter.bits && !same) {
      return refuse("TypeError", i, dtype_name(parameter.code, parameter.bits) +
                    " on cuda, got " + dtype_name(dtype.code, dtype.bits) + " on cuda.");
    }
    if (!is_contiguous(*tensor)) {
      return refuse("ValueError", i, "a contiguous tensor, because a kernel sees its memory only, "
                    "got one with gaps or another order. Write x.contiguous().");
    }
    value->pointer = static_cast<char*>(tensor->data) + tensor->byte_offset;
    return 0;
  }

  const tp_cuda_kernel& kernel_;
  const TVMFFIAny* args_;
};

int wrong_count(const tp_cuda_kernel& kernel, int32_t got) {
  std::string names;
  for (int32_t i = 0; i < kernel.count; ++i) {
    names += (i ? ", " : "") + std::string(kernel.parameters[i].type) + " " +
             kernel.parameters[i].name;
  }
  return fail("TypeError", kernel.name, "expected " + std::to_string(kernel.count) +
              " arguments (" + names + "), got " + std::to_string(got) + ".");
}

int find_kernel(const tp_cuda_program& program, const char* name) {
  for (int32_t i = 0; i < program.kernel_count; ++i) {
    if (std::strcmp(program.kernels[i].name, name) == 0) return i;
  }
  return -1;
}

const char* kind_name(uint8_t kind) {
  switch (kind) {
    case TP_CUDA_TENSOR: return "a tensor or pointer";
    case TP_CUDA_BOOL: return "a bool";
    case TP_CUDA_FLOAT: return "a floating-point number";
    default: return "an integer";
  }
}

int launch(tp_cuda_program* program, const char* name, const tp_cuda_config& config,
           const tp_cuda_argument* args, int32_t count) {
  int32_t number = find_kernel(*program, name);
  if (number < 0) {
    std::string known;
    for (int32_t i = 0; i < program->kernel_count; ++i) {
      known += (i ? ", " : "") + std::string(program->kernels[i].name);
    }
    return fail("ValueError", name, "the CUDA text has no such kernel; it has " + known + ".");
  }
  const tp_cuda_kernel& kernel = program->kernels[number];
  if (count != kernel.count) return wrong_count(kernel, count);
  int32_t device = config.device;
  std::vector<void*> values(count + 1);
  for (int32_t i = 0; i < count; ++i) {
    const tp_cuda_parameter& parameter = kernel.parameters[i];
    std::string shown = "'" + std::string(parameter.name) + "'";
    uint32_t size = parameter.kind == TP_CUDA_TENSOR ? sizeof(void*)
                    : parameter.kind == TP_CUDA_BOOL ? sizeof(bool)
                                                     : parameter.bits / 8;
    bool integers = args[i].kind == TP_CUDA_INT || args[i].kind == TP_CUDA_UINT;
    bool wanted = parameter.kind == TP_CUDA_INT || parameter.kind == TP_CUDA_UINT;
    if (args[i].size != size || (args[i].kind != parameter.kind && !(integers && wanted))) {
      return fail("TypeError", name,
                  "argument " + shown + ": expected a C++ value of type " + parameter.type +
                      " (" + std::to_string(size) + " bytes), got " + kind_name(args[i].kind) +
                      " of " + std::to_string(args[i].size) + " bytes. Write static_cast<" +
                      parameter.type + ">(…).");
    }
    if (args[i].device_type &&
        check_device(name, shown, args[i].device_type, args[i].device_id, &device) != 0) {
      return -1;
    }
    values[i] = const_cast<char*>(args[i].value);
  }
  if (usable(*program, name) != 0) return -1;
  if (device < 0) device = 0;
  if (check_index(name, device) != 0) return -1;
  return run(program, number, name, config, device, values.data());
}

int call(tp_cuda_program* program, int32_t number, const TVMFFIAny* args, int32_t count) {
  const tp_cuda_kernel& kernel = program->kernels[number];
  if (count != kConfigArguments + kernel.count) {
    return count < kConfigArguments
               ? fail("TypeError", kernel.name,
                      "expected grid, block, bytes of shared memory and stream before the kernel's "
                      "arguments: 8 values")
               : wrong_count(kernel, count - kConfigArguments);
  }
  tp_cuda_config config{};
  config.device = -1;
  for (int i = 0; i < 7; ++i) {
    if (args[i].type_index != kTVMFFIInt || args[i].v_int64 < (i < 6) ||
        args[i].v_int64 > 0x7fffffff) {
      return fail("ValueError", kernel.name,
                  "expected sizes of grid and block from 1, and bytes of shared memory from 0, to "
                  "2147483647");
    }
    uint32_t value = static_cast<uint32_t>(args[i].v_int64);
    (i < 3 ? config.grid[i] : i < 6 ? config.block[i - 3] : config.shared) = value;
  }
  if (args[7].type_index != kTVMFFINone) {
    config.has_stream = 1;
    config.stream = args[7].type_index == kTVMFFIOpaquePtr
                        ? args[7].v_ptr
                        : reinterpret_cast<void*>(static_cast<intptr_t>(args[7].v_int64));
  }
  std::vector<Value> values(kernel.count + 1);
  int32_t device = -1;
  if (Call(kernel, args + kConfigArguments).read(&values, &device) != 0) return -1;
  if (usable(*program, kernel.name) != 0) return -1;
  if (device < 0) device = 0;
  if (check_index(kernel.name, device) != 0) return -1;
  std::vector<void*> addresses(kernel.count + 1);
  for (int32_t i = 0; i < kernel.count; ++i) addresses[i] = &values[i];
  return run(program, number, kernel.name, config, device, addresses.data());
}

}  // namespace

extern "C" {

int tp_cuda_call(tp_cuda_program* program, int32_t kernel, const TVMFFIAny* args, int32_t count) {
  try {
    return call(program, kernel, args, count);
  } catch (...) {
    return tp_rt_raise_current();
  }
}

int tp_cuda_run(tp_cuda_program* program, const char* title, const char* kernel,
                const tp_cuda_config* config, void** values) {
  try {
    const int32_t number = find_kernel(*program, kernel);
    if (number < 0) {
      return fail("RuntimeError", title, "its kernel " + std::string(kernel) +
                  " is not in the binary of the library. Build it again.");
    }
    if (usable(*program, title) != 0 || check_index(title, config->device) != 0) return -1;
    return run(program, number, title, *config, config->device, values);
  } catch (...) {
    return tp_rt_raise_current();
  }
}

int tp_cuda_launch(tp_cuda_program* program, const char* kernel, const tp_cuda_config* config,
                   const tp_cuda_argument* args, int32_t count) {
  try {
    return launch(program, kernel, *config, args, count);
  } catch (...) {
    return tp_rt_raise_current();
  }
}
}
