// The structures of DLPack 1.x that cross the boundary, laid out as its specification says
// (https://dmlc.github.io/dlpack/latest/c_api.html). Declared here so that installing the package
// needs no other package's headers.
#pragma once

#include <cstdint>

extern "C" {

enum : int32_t { kDLCPU = 1 };

enum : uint8_t {
  kDLInt = 0,
  kDLUInt = 1,
  kDLFloat = 2,
  kDLBfloat = 4,
  kDLComplex = 5,
  kDLBool = 6,
};

constexpr uint64_t kDLFlagReadOnly = 1;

struct DLDevice {
  int32_t device_type;
  int32_t device_id;
};

struct DLDataType {
  uint8_t code;
  uint8_t bits;
  uint16_t lanes;
};

struct DLTensor {
  void* data;
  DLDevice device;
  int32_t ndim;
  DLDataType dtype;
  int64_t* shape;
  int64_t* strides;
  uint64_t byte_offset;
};

struct DLVersion {
  uint32_t major;
  uint32_t minor;
};

struct DLManagedTensorVersioned {
  DLVersion version;
  void* manager_ctx;
  void (*deleter)(DLManagedTensorVersioned*);
  uint64_t flags;
  DLTensor dl_tensor;
};

using DLSetError = void (*)(void* context, const char* kind, const char* message);

// The exchange table: a type shows it as the capsule `__dlpack_c_exchange_api__`.
struct DLExchangeHeader {
  DLVersion version;
  DLExchangeHeader* previous;
};

struct DLExchangeTable {
  DLExchangeHeader header;
  int (*allocate)(DLTensor* prototype, DLManagedTensorVersioned** out, void* context, DLSetError);
  int (*from_object)(void* object, DLManagedTensorVersioned** out);
  int (*to_object)(DLManagedTensorVersioned* tensor, void** out);
  int (*view_of_object)(void* object, DLTensor* out);
  int (*current_stream)(int32_t device_type, int32_t device_id, void** out);
};

}  // extern "C"
