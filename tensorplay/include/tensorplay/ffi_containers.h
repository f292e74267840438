// The engine's containers, with what a map does out of line in the run-time library.
//
// Inserting into a hash map is most of what such a cell has to compile, and the same in each. The
// specialisations below have the meaning of the templates; the run-time library instantiates those.
#pragma once
#pragma GCC system_header
#include <tensorplay/ffi_full.h>
#include <tvm/ffi/container/map_base.h>

namespace tvm {
namespace ffi {

class MapObj;
class DictObj;

#define TP_MAP_OUT_OF_LINE(Type)                                                             \
  template <>                                                                                \
  ObjectPtr<Object> MapBaseObj::Empty<Type>();                                               \
  template <>                                                                                \
  ObjectPtr<Object> MapBaseObj::CopyFrom<Type>(MapBaseObj * from);                           \
  template <>                                                                                \
  ObjectPtr<Object> MapBaseObj::CreateFromRange<Type, MapBaseObj::iterator>(                 \
      MapBaseObj::iterator first, MapBaseObj::iterator last);                                \
  template <>                                                                                \
  ObjectPtr<Object> MapBaseObj::InsertMaybeReHash<Type>(KVType && item,                      \
                                                        const ObjectPtr<Object>& map);
TP_MAP_OUT_OF_LINE(MapObj)
TP_MAP_OUT_OF_LINE(DictObj)
#undef TP_MAP_OUT_OF_LINE

}  // namespace ffi
}  // namespace tvm

#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/dict.h>
#include <tvm/ffi/container/list.h>
#include <tvm/ffi/container/map.h>
#include <tvm/ffi/container/tuple.h>
#include <tvm/ffi/container/variant.h>
