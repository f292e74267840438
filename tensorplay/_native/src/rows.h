// Rows of a call: where its operands lie, how work on them is cut into tasks, and what a task does.
#pragma once

#include <vector>

#include "launch.h"

namespace tensorplay {

constexpr int kMaxOperands = 64;
constexpr int64_t kTile = 2048;    // elements packed at a time where a row may be cut
constexpr int64_t kPiece = 16384;  // elements per task where a row may be cut

using Kernel = void (*)(char* const*, int64_t, const double*, char*, int64_t);
using Finish = void (*)(char* const*, int64_t, int64_t, const double*);

struct Operand {
  PyArray_Descr* type = nullptr;
  int64_t size = 0;
  bool per_row = false;
  // Inputs: dimensions of size 1 that are missing behind the shape. Outputs per row: whether the
  // reduced dimensions are kept with size 1.
  int behind = 0;
  int destination = -1;  // number of the argument that the output is written to, or a new array
};

struct LoopCall {
  PyObject_HEAD
  Kernel kernel;
  Finish finish;
  int64_t lanes;
  int inner;  // dimensions of a row; -1: all, and rows may be cut
  int64_t scratch;
  bool partial;
  int64_t cost;  // how much an element takes, in units of an addition in memory
  std::vector<Operand>* inputs;
  std::vector<Operand>* outputs;   // of the kernel; partial ones last
  std::vector<Operand>* finished;  // of `finish`
  std::vector<double>* numbers;
  PyObject* owner;  // keeps the library
};

// One operand of one call: strides over the outer dimensions, and over those of a row.
struct Place {
  char* data;
  int64_t size;
  bool per_row;
  bool is_output;
  int64_t outer[kMaxDims];
  int64_t inner[kMaxDims];
  bool plain;  // a row is contiguous, or one element
};

struct Space {
  int outer_dims = 0, inner_dims = 0;
  int64_t outer[kMaxDims], inner[kMaxDims];
  int64_t rows = 1, length = 1;
};

struct Task {
  const LoopCall* call;
  const Space* space;
  const Place* places;
  int count;
  bool plain;
  bool streams;         // whole pieces are written past the caches
  int64_t pieces;       // per row
  int64_t piece;        // elements
  int64_t batch;        // (row, piece) pairs per task
  char* partials;       // of 8 bytes, one after the other for each output
  int64_t parts;
  int64_t buffer_bytes;
};

// A task's work, for `run_in_threads`; `context` is a `Task`.
void run_task(void* context, int64_t number);

// Join neighbouring dimensions that every operand steps through evenly; drop those of size 1.
int collapse(int64_t* sizes, Place* places, int count, int dims, bool outer);

// Combine the results of the pieces with the kernel's second function: `inputs` and the outputs of
// rows lie at `places`, results go to `results`.
void finish_parts(const Task& task, char* const* results, int64_t total);

}  // namespace tensorplay
