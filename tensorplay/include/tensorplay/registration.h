// Classes and global functions of a cell, or of files that are built as they are: registered after the
// library is loaded, and again when the cell runs again or the files are loaded again.
//
// The engine registers while the system loads the library and takes a name once: a cell that runs
// again would end the process there. Here a block of registrations waits until TensorPlay asks for it,
// where an error is an exception, and names that the same library registers again are replaced: a
// global function at once, a class where its fields are the same, else under a new type (see
// runtime/registration.cpp). Loaded without TensorPlay, a library registers at once, as the engine
// has it.
#pragma once
#pragma GCC system_header
#include <stdint.h>
#include <tvm/ffi/c_api.h>
#include <tvm/ffi/object.h>

extern "C" {
// Runs a block of registrations now, or keeps it until it is asked for.
void tp_rt_defer(void (*block)()) noexcept;
int32_t tp_rt_type_index(const TVMFFIByteArray* key, int32_t static_index, int32_t depth,
                         int32_t child_slots, int32_t slots_can_overflow, int32_t parent);
int tp_rt_set_global(const TVMFFIMethodInfo* info, int override);
int tp_rt_register_metadata(int32_t type, const TVMFFITypeMetadata* metadata);
int tp_rt_register_field(int32_t type, const TVMFFIFieldInfo* info);
int tp_rt_register_method(int32_t type, const TVMFFIMethodInfo* info);
int tp_rt_register_attribute(int32_t type, const TVMFFIByteArray* name, const TVMFFIAny* value);
}

#define TVMFFITypeGetOrAllocIndex tp_rt_type_index
#define TVMFFIFunctionSetGlobalFromMethodInfo tp_rt_set_global
#define TVMFFITypeRegisterMetadata tp_rt_register_metadata
#define TVMFFITypeRegisterField tp_rt_register_field
#define TVMFFITypeRegisterMethod tp_rt_register_method
#define TVMFFITypeRegisterAttr tp_rt_register_attribute

#undef TVM_FFI_STATIC_INIT_BLOCK
#define TVM_FFI_STATIC_INIT_BLOCK() TP_BLOCK_(__COUNTER__)
#define TP_BLOCK_(Number) TP_BLOCK_NAMED_(Number)
#define TP_BLOCK_NAMED_(Number)                                                            \
  static void tp_block_##Number();                                                         \
  __attribute__((constructor)) static void tp_defer_##Number() { tp_rt_defer(&tp_block_##Number); } \
  static void tp_block_##Number()
