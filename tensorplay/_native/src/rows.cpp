// What a task of a kernel's call does: rows in place where they are whole vectors, and packed copies of
// all others.
#include "rows.h"

#include <algorithm>
#include <cstring>
#if defined(__x86_64__) && defined(__GNUC__)
#include <xmmintrin.h>
#endif

namespace tensorplay {

namespace {

void copy_elements(char* to, int64_t to_step, const char* from, int64_t from_step, int64_t n,
                   int64_t size) {
  if (to_step == size && from_step == size) {
    std::memcpy(to, from, static_cast<size_t>(n * size));
    return;
  }
  switch (size) {
#define TP_CASE(type)                                          \
  for (int64_t i = 0; i < n; ++i) {                            \
    type x;                                                    \
    std::memcpy(&x, from + i * from_step, sizeof x);           \
    std::memcpy(to + i * to_step, &x, sizeof x);               \
  }                                                            \
  break;
    case 1: TP_CASE(uint8_t)
    case 2: TP_CASE(uint16_t)
    case 4: TP_CASE(uint32_t)
    default: TP_CASE(uint64_t)
#undef TP_CASE
  }
}

// Copy elements `from` … of a row with several dimensions to or from contiguous memory.
void copy_row(char* packed, char* data, const int64_t* sizes, const int64_t* strides, int dims,
              int64_t from, int64_t n, int64_t size, bool pack) {
  int64_t last = dims ? sizes[dims - 1] : 1;
  int64_t step = dims ? strides[dims - 1] : 0;
  while (n > 0) {
    int64_t rest = from, offset = 0;
    int64_t at = dims ? rest % last : 0;
    rest = dims ? rest / last : 0;
    offset += at * step;
    for (int d = dims - 2; d >= 0; --d) {
      offset += rest % sizes[d] * strides[d];
      rest /= sizes[d];
    }
    int64_t run = std::min(n, last - at);
    if (pack) {
      copy_elements(packed, size, data + offset, step, run, size);
    } else {
      copy_elements(data + offset, step, packed, size, run, size);
    }
    packed += run * size;
    from += run;
    n -= run;
  }
}

// Run the kernel on elements from … from + n of a row whose operands are copied to whole vectors.
void run_packed(const Task& task, char* const* start, int64_t from, int64_t n, char* buffer,
                char* scratch) {
  const LoopCall& call = *task.call;
  char* data[kMaxOperands];
  int64_t room = (n + call.lanes - 1) / call.lanes * call.lanes;
  for (int j = 0; j < task.count; ++j) {
    const Place& p = task.places[j];
    if (p.per_row) {
      data[j] = start[j];
      continue;
    }
    data[j] = buffer;
    buffer += (room * p.size + 63) / 64 * 64;
    if (p.is_output) continue;
    copy_row(data[j], start[j], task.space->inner, p.inner, task.space->inner_dims, from, n, p.size,
             true);
    for (int64_t i = n; i < room; ++i) {
      std::memcpy(data[j] + i * p.size, data[j], static_cast<size_t>(p.size));
    }
  }
  bool cut = call.inner < 0;
  call.kernel(data, cut && !call.partial ? room : n, call.numbers->data(), cut ? nullptr : scratch, 0);
  for (int j = 0; j < task.count; ++j) {
    const Place& p = task.places[j];
    if (p.is_output && !p.per_row) {
      copy_row(data[j], start[j], task.space->inner, p.inner, task.space->inner_dims, from, n,
               p.size, false);
    }
  }
}

}  // namespace

void run_task(void* context, int64_t number) {
  const Task& task = *static_cast<const Task*>(context);
  const LoopCall& call = *task.call;
  const Space& space = *task.space;
  int64_t first = number * task.batch;
  int64_t end = std::min(first + task.batch, space.rows * task.pieces);
  char* buffer = nullptr;
  if (task.buffer_bytes > 0) {
    buffer = static_cast<char*>(thread_memory(static_cast<size_t>(task.buffer_bytes)));
  }
  char* scratch = buffer;
  if (buffer != nullptr) {
    int64_t room = (space.length + call.lanes - 1) / call.lanes * call.lanes;
    buffer += (room * call.scratch + 63) / 64 * 64;
  }
  char* start[kMaxOperands];
  char* data[kMaxOperands];
  int64_t known_row = -1;
  for (int64_t pair = first; pair < end; ++pair) {
    // A division takes as long as several vectors of a row.
    int64_t row = task.pieces == 1 ? pair : pair / task.pieces;
    if (row != known_row) {
      known_row = row;
      for (int j = 0; j < task.count; ++j) start[j] = task.places[j].data;
      int64_t rest = row;
      for (int d = space.outer_dims - 1; d >= 0 && rest; --d) {
        int64_t at = d == 0 ? rest : rest % space.outer[d];
        rest = d == 0 ? 0 : rest / space.outer[d];
        if (at) {
          for (int j = 0; j < task.count; ++j) start[j] += at * task.places[j].outer[d];
        }
      }
    }
    int64_t from = task.pieces == 1 ? 0 : (pair % task.pieces) * task.piece;
    int64_t n = std::min(task.piece, space.length - from);
    if (call.partial) {
      // Two partial results per piece: of its whole vectors, and of what is left.
      int64_t whole = task.plain ? n / call.lanes * call.lanes : 0;
      for (int half = 0; half < 2; ++half) {
        int64_t at = half ? from + whole : from;
        int64_t length = half ? n - whole : whole;
        if (length == 0) continue;
        int64_t part = task.plain ? pair * 2 + half : pair * 2 + 1;
        char* local[kMaxOperands];
        for (int j = 0, k = 0; j < task.count; ++j) {
          const Place& p = task.places[j];
          local[j] = start[j];
          if (p.is_output && p.per_row) {
            local[j] = task.partials + (k++ * task.parts + part) * 8;
          } else if (!half && !p.per_row) {
            local[j] = start[j] + at * p.size;
          }
        }
        if (half) {
          run_packed(task, local, at, length, buffer, scratch);
        } else {
          call.kernel(local, length, call.numbers->data(), scratch, task.streams);
        }
      }
      continue;
    }
    if (!task.plain) {
      if (call.inner < 0) {
        for (int64_t at = from; at < from + n; at += kTile) {
          run_packed(task, start, at, std::min(kTile, from + n - at), buffer, scratch);
        }
      } else {
        run_packed(task, start, 0, space.length, buffer, scratch);
      }
      continue;
    }
    int64_t whole = n / call.lanes * call.lanes;
    if (call.inner >= 0 && whole < n) {
      run_packed(task, start, 0, n, buffer, scratch);
      continue;
    }
    if (whole > 0) {
      for (int j = 0; j < task.count; ++j) {
        const Place& p = task.places[j];
        data[j] = p.per_row ? start[j] : start[j] + from * p.size;
      }
      char* room = call.inner >= 0 ? scratch : nullptr;
      call.kernel(data, whole, call.numbers->data(), room, task.streams);
    }
    if (whole < n) run_packed(task, start, from + whole, n - whole, buffer, scratch);
  }
#if defined(__x86_64__) && defined(__GNUC__)
  if (task.streams) _mm_sfence();  // so that other threads see what went past the caches
#endif
}

int collapse(int64_t* sizes, Place* places, int count, int dims, bool outer) {
  int kept = 0;
  for (int d = 0; d < dims; ++d) {
    if (sizes[d] == 1) continue;
    bool joins = kept > 0;
    for (int j = 0; joins && j < count; ++j) {
      int64_t* s = outer ? places[j].outer : places[j].inner;
      joins = s[kept - 1] == s[d] * sizes[d];
    }
    if (joins) {
      sizes[kept - 1] *= sizes[d];
    } else {
      sizes[kept] = sizes[d];
      ++kept;
    }
    for (int j = 0; j < count; ++j) {
      int64_t* s = outer ? places[j].outer : places[j].inner;
      s[kept - 1] = s[d];
    }
  }
  return kept;
}

void finish_parts(const Task& task, char* const* results, int64_t total) {
  const LoopCall& call = *task.call;
  const Space& space = *task.space;
  const auto& outputs = *call.outputs;
  size_t inputs = call.inputs->size();
  size_t partial = 0;
  for (const Operand& o : outputs) partial += o.per_row;
  // Of each piece only the halves that are there.
  int64_t parts = 0;
  std::vector<char> dense(partial * static_cast<size_t>(task.parts) * 8);
  auto start = [&](char* from, size_t output) {
    return from + static_cast<int64_t>(output) * task.parts * 8;
  };
  for (int64_t pair = 0; pair < space.rows * task.pieces; ++pair) {
    int64_t from = pair % task.pieces * task.piece;
    int64_t n = std::min(task.piece, space.length - from);
    int64_t whole = task.plain ? n / call.lanes * call.lanes : 0;
    for (int half = 0; half < 2; ++half) {
      if ((half ? n - whole : whole) == 0) continue;
      for (size_t k = 0; k < partial; ++k) {
        int64_t size = outputs[outputs.size() - partial + k].size;
        std::memcpy(start(dense.data(), k) + parts * size,
                    start(task.partials, k) + (pair * 2 + half) * 8, static_cast<size_t>(size));
      }
      ++parts;
    }
  }
  char* data[kMaxOperands];
  int at = 0;
  for (size_t j = 0; j < inputs + outputs.size() - partial; ++j) data[at++] = task.places[j].data;
  for (size_t k = 0; k < partial; ++k) data[at++] = start(dense.data(), k);
  for (size_t k = 0; k < call.finished->size(); ++k) data[at++] = results[k];
  call.finish(data, parts, total, call.numbers->data());
}

}  // namespace tensorplay
