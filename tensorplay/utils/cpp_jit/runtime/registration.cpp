// What a library registers with the engine, when and over what; see tensorplay/registration.h.
//
// TensorPlay loads a library while the global function "tensorplay.defer" exists, which keeps blocks of
// registrations back, and then calls `tp_registrations` with a function that judges each name: it
// returns where the name is free or the same library's, and raises otherwise. A class whose fields have
// changed cannot take its old type: objects of that are alive. The judge then raises, and the library
// is loaded again while "tensorplay.type.NAME" exists, so that its type is NAME#2, NAME#3, and so on.
#include <cstdio>
#include <cstring>
#include <exception>
#include <string>
#include <utility>
#include <vector>

#include <tensorplay/runtime.h>
#include <tvm/ffi/c_api.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/function.h>

namespace {

using tvm::ffi::Function;

constexpr int32_t kMostVersions = 100000;

struct Redefined {
  int32_t type;
  int32_t fields;  // that are the same as before
};

struct State {
  std::vector<void (*)()> blocks;
  std::vector<std::pair<std::string, int32_t>> types;  // of this library, by the name it gives them
  std::vector<std::string> moved;                      // types whose base is another one than before
  std::vector<int32_t> fresh;                          // types that this library defined
  std::vector<Redefined> redefined;
  const Function* judge = nullptr;
};

State& state() {
  static State made;
  return made;
}

TVMFFIByteArray bytes(const std::string& text) { return {text.data(), text.size()}; }
std::string text(const TVMFFIByteArray& given) { return std::string(given.data, given.size); }

bool exists(const std::string& global) {
  TVMFFIByteArray name = bytes(global);
  TVMFFIObjectHandle found = nullptr;
  if (TVMFFIFunctionGetGlobal(&name, &found) != 0 || found == nullptr) return false;
  TVMFFIObjectDecRef(found);
  return true;
}

// -2: there is no such type.
int32_t find_type(const std::string& name) {
  TVMFFIByteArray key = bytes(name);
  return TVMFFITypeGetOrAllocIndex(&key, -1, 0, 0, 0, -2);
}

std::string key_of(int32_t type) { return text(TVMFFIGetTypeInfo(type)->type_key); }

// Asks about a name; an exception of the judge becomes the engine's raised error and -1.
int ask(const char* kind, const std::string& name) {
  if (state().judge == nullptr) return 0;
  try {
    (*state().judge)(kind, name);
    return 0;
  } catch (...) {
    return tp_rt_raise_current();
  }
}

bool is_fresh(int32_t type) {
  for (int32_t known : state().fresh) {
    if (known == type) return true;
  }
  return false;
}

bool same(const TVMFFIFieldInfo& a, const TVMFFIFieldInfo& b) {
  constexpr int64_t meaning = kTVMFFIFieldFlagBitMaskWritable;
  return a.offset == b.offset && a.size == b.size && a.alignment == b.alignment &&
         a.field_static_type_index == b.field_static_type_index &&
         (a.flags & meaning) == (b.flags & meaning) && text(a.metadata) == text(b.metadata);
}

// A value of the engine's tables in the place of another, which stays alive: it may be in use.
void put(TVMFFIAny* place, const TVMFFIAny& value) {
  TVMFFIAny owned{};
  if (TVMFFIAnyViewToOwnedAny(&value, &owned) == 0) *place = owned;
}

void run_blocks() {
  std::vector<void (*)()> blocks;
  blocks.swap(state().blocks);
  for (void (*block)() : blocks) block();
}

// Everything that waits, judged by a function.
int run(const Function& judge) {
  State& s = state();
  s.judge = &judge;
  struct Done {
    ~Done() { state().judge = nullptr; }
  } done;
  for (const std::string& name : s.moved) {
    if (ask("changed", name) != 0) return -1;
  }
  run_blocks();
  for (const Redefined& again : s.redefined) {
    const std::string name = key_of(again.type);
    if (again.fields != TVMFFIGetTypeInfo(again.type)->num_fields && ask("changed", name) != 0) return -1;
    if (ask("again", name) != 0) return -1;
  }
  s.redefined.clear();
  return 0;
}

}  // namespace

extern "C" {

void tp_rt_defer(void (*block)()) noexcept {
  try {
    if (exists("tensorplay.defer")) {
      state().blocks.push_back(block);
      return;
    }
    block();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "a library could not register what it defines: %s\n", error.what());
  } catch (...) {
    std::fprintf(stderr, "a library could not register what it defines\n");
  }
}

int32_t tp_rt_type_index(const TVMFFIByteArray* key, int32_t static_index, int32_t depth,
                         int32_t child_slots, int32_t slots_can_overflow, int32_t parent) {
  State& s = state();
  const std::string name = text(*key);
  for (const auto& known : s.types) {
    if (known.first == name) return known.second;
  }
  // The newest version of the type, or the one after it.
  std::string version = name;
  for (int32_t n = 2; n < kMostVersions && find_type(name + "#" + std::to_string(n)) != -2; ++n) {
    version = name + "#" + std::to_string(n);
  }
  if (exists("tensorplay.type." + name)) {
    const size_t mark = version.size() > name.size() ? name.size() + 1 : 0;
    const int32_t next = mark ? std::atoi(version.c_str() + mark) + 1 : 2;
    version = name + "#" + std::to_string(next);
  }
  const int32_t before = find_type(version);
  if (before >= 0) {
    const TVMFFITypeInfo* info = TVMFFIGetTypeInfo(before);
    const bool has_base = info->type_depth > 0 && parent >= 0;
    if (info->type_depth != depth ||
        (has_base && info->type_ancestors[info->type_depth - 1]->type_index != parent)) {
      s.moved.push_back(version);
    }
  }
  const TVMFFIByteArray used = bytes(version);
  const int32_t type = TVMFFITypeGetOrAllocIndex(&used, static_index, depth, child_slots,
                                                 slots_can_overflow, parent);
  s.types.emplace_back(name, type);
  return type;
}

int tp_rt_set_global(const TVMFFIMethodInfo* info, int override) {
  if (ask("function", text(info->name)) != 0) return -1;
  return TVMFFIFunctionSetGlobalFromMethodInfo(info, override || state().judge != nullptr);
}

int tp_rt_register_metadata(int32_t type, const TVMFFITypeMetadata* metadata) {
  const TVMFFITypeInfo* info = TVMFFIGetTypeInfo(type);
  if (ask(info->metadata == nullptr ? "type" : "type again", key_of(type)) != 0) return -1;
  if (info->metadata == nullptr || state().judge == nullptr) {
    state().fresh.push_back(type);
    return TVMFFITypeRegisterMetadata(type, metadata);
  }
  if (info->metadata->total_size != metadata->total_size ||
      info->metadata->structural_eq_hash_kind != metadata->structural_eq_hash_kind) {
    return ask("changed", key_of(type));
  }
  const_cast<TVMFFITypeMetadata*>(info->metadata)->creator = metadata->creator;
  state().redefined.push_back({type, 0});
  return 0;
}

int tp_rt_register_field(int32_t type, const TVMFFIFieldInfo* info) {
  if (is_fresh(type) || state().judge == nullptr) return TVMFFITypeRegisterField(type, info);
  const TVMFFITypeInfo* known = TVMFFIGetTypeInfo(type);
  for (int32_t i = 0; i < known->num_fields; ++i) {
    if (text(known->fields[i].name) != text(info->name) || !same(known->fields[i], *info)) continue;
    // What is done with a value is the new library's.
    auto& field = const_cast<TVMFFIFieldInfo&>(known->fields[i]);
    field.getter = info->getter;
    if (!(info->flags & kTVMFFIFieldFlagBitSetterIsFunctionObj)) field.setter = info->setter;
    if (info->flags & kTVMFFIFieldFlagBitMaskHasDefault) {
      put(&field.default_value_or_factory, info->default_value_or_factory);
    }
    for (Redefined& again : state().redefined) again.fields += again.type == type;
    return 0;
  }
  return ask("changed", key_of(type));
}

int tp_rt_register_method(int32_t type, const TVMFFIMethodInfo* info) {
  if (is_fresh(type) || state().judge == nullptr) return TVMFFITypeRegisterMethod(type, info);
  const TVMFFITypeInfo* known = TVMFFIGetTypeInfo(type);
  for (int32_t i = 0; i < known->num_methods; ++i) {
    if (text(known->methods[i].name) != text(info->name)) continue;
    auto& method = const_cast<TVMFFIMethodInfo&>(known->methods[i]);
    method.flags = info->flags;
    put(&method.method, info->method);
    return 0;
  }
  return TVMFFITypeRegisterMethod(type, info);
}

int tp_rt_register_attribute(int32_t type, const TVMFFIByteArray* name, const TVMFFIAny* value) {
  if (type < 0 || is_fresh(type) || state().judge == nullptr) {
    return TVMFFITypeRegisterAttr(type, name, value);
  }
  const TVMFFITypeAttrColumn* column = TVMFFIGetTypeAttrColumn(name);
  const int32_t at = column ? type - column->begin_index : -1;
  if (at < 0 || at >= column->size || column->data[at].type_index == kTVMFFINone) {
    return TVMFFITypeRegisterAttr(type, name, value);
  }
  put(const_cast<TVMFFIAny*>(&column->data[at]), *value);
  return 0;
}

__attribute__((visibility("default"))) int __tvm_ffi_tp_registrations(void*, const TVMFFIAny* args,
                                                                      int32_t count,
                                                                      TVMFFIAny* result) {
  result->type_index = kTVMFFINone;
  result->zero_padding = 0;
  result->v_int64 = 0;
  try {
    if (count != 1) tp_rt_throw("TypeError", "tp_registrations takes one function");
    return run(tvm::ffi::AnyView::CopyFromTVMFFIAny(args[0]).cast<Function>());
  } catch (...) {
    return tp_rt_raise_current();
  }
}

}  // extern "C"
