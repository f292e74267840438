// What `tensorplay/ffi_full.h` and `tensorplay/ffi_containers.h` only declare.
#include <tvm/ffi/any.h>
#include <tvm/ffi/container/dict.h>
#include <tvm/ffi/container/map.h>

namespace tvm {
namespace ffi {

// Inline functions of the engine, kept although nothing here calls them.
[[gnu::used]] static constexpr auto kHash = &AnyHash::operator();
[[gnu::used]] static constexpr auto kEqual = &AnyEqual::operator();

#define TP_MAP(Type)                                                                              \
  template ObjectPtr<Object> MapBaseObj::Empty<Type>();                                           \
  template ObjectPtr<Object> MapBaseObj::CopyFrom<Type>(MapBaseObj*);                             \
  template ObjectPtr<Object> MapBaseObj::CreateFromRange<Type, MapBaseObj::iterator>(             \
      MapBaseObj::iterator, MapBaseObj::iterator);                                                \
  template ObjectPtr<Object> MapBaseObj::InsertMaybeReHash<Type>(MapBaseObj::KVType&&,            \
                                                                 const ObjectPtr<Object>&);
TP_MAP(MapObj)
TP_MAP(DictObj)

}  // namespace ffi
}  // namespace tvm
