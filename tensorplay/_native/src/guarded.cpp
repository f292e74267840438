// Results of kernels between zones of known bytes, so that a check sees what a kernel writes outside
// of what it allocated. Switched off, as it is everywhere but in a check, it costs one load.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <mutex>
#include <vector>

#include "native.h"

namespace tensorplay {
namespace {

constexpr size_t kAlignment = 64;
// Larger results get plain zones and are not filled: that would touch memory which nobody else does.
constexpr size_t kLargest = size_t{64} << 20;

struct Block {
  char* elements;
  size_t bytes, zone, itemsize;
  unsigned char byte;
};
struct Damage {
  const void* elements;
  int64_t element, count;
};

std::atomic<size_t> least{0};
std::atomic<unsigned char> zone_byte{0}, element_byte{0};
std::mutex lock;
// Never destroyed: a thread may free a result after the process has begun to end.
auto& blocks = *new std::map<const void*, Block>;
auto& found = *new std::vector<Damage>;

// The first byte that is not what the zones hold, counted from the first element.
bool is_damaged(const Block& block, ptrdiff_t* at) {
  const auto zone = static_cast<ptrdiff_t>(block.zone), bytes = static_cast<ptrdiff_t>(block.bytes);
  for (const auto& [from, to] : {std::pair{-zone, ptrdiff_t{0}}, std::pair{bytes, bytes + zone}}) {
    for (*at = from; *at < to; ++*at) {
      if (static_cast<unsigned char>(block.elements[*at]) != block.byte) return true;
    }
  }
  return false;
}

void look_at(const Block& block) {
  ptrdiff_t at = 0;
  if (!is_damaged(block, &at)) return;
  const auto size = static_cast<ptrdiff_t>(block.itemsize);
  const ptrdiff_t element = at >= 0 ? at / size : -((-at + size - 1) / size);
  found.push_back({block.elements, element, static_cast<int64_t>(block.bytes / block.itemsize)});
}

void fill_zones(const Block& block) {
  std::memset(block.elements - block.zone, block.byte, block.zone);
  std::memset(block.elements + block.bytes, block.byte, block.zone);
}

}  // namespace

size_t zone_around(size_t bytes) {
  const size_t wanted = least.load(std::memory_order_relaxed);
  if (wanted == 0) return 0;
  const size_t zone = bytes <= kLargest ? std::max(wanted, 2 * bytes) : wanted;
  return (zone + kAlignment - 1) / kAlignment * kAlignment;
}

void guard(DLManagedTensorVersioned* made, size_t bytes, size_t zone) {
  Block block{static_cast<char*>(made->dl_tensor.data), bytes, zone,
              static_cast<size_t>(made->dl_tensor.dtype.bits) / 8, zone_byte.load()};
  fill_zones(block);
  if (bytes <= kLargest) std::memset(block.elements, element_byte.load(), bytes);
  const std::lock_guard<std::mutex> held(lock);
  blocks[made] = block;
}

void release_guarded(const DLManagedTensorVersioned* self) {
  const std::lock_guard<std::mutex> held(lock);
  const auto at = blocks.find(self);
  look_at(at->second);
  blocks.erase(at);
}

PyObject* guard_results(PyObject*, PyObject* args) {
  Py_ssize_t zone = 0;
  unsigned char around = 0, inside = 0;
  if (!PyArg_ParseTuple(args, "nbb", &zone, &around, &inside)) return nullptr;
  zone_byte = around;
  element_byte = inside;
  least = static_cast<size_t>(zone);
  Py_RETURN_NONE;
}

PyObject* take_damage(PyObject*, PyObject*) {
  std::vector<Damage> taken;
  {
    const std::lock_guard<std::mutex> held(lock);
    for (const auto& [owner, block] : blocks) {
      const size_t before = found.size();
      look_at(block);
      if (found.size() > before) fill_zones(block);  // said once
    }
    taken.swap(found);
  }
  PyObject* list = PyList_New(0);
  for (const Damage& damage : taken) {
    if (list == nullptr) break;
    PyObject* item = Py_BuildValue("(NLL)", PyLong_FromVoidPtr(const_cast<void*>(damage.elements)),
                                   static_cast<long long>(damage.element),
                                   static_cast<long long>(damage.count));
    if (item == nullptr || PyList_Append(list, item) < 0) Py_CLEAR(list);
    Py_XDECREF(item);
  }
  return list;
}

}  // namespace tensorplay
