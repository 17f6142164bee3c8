// The parts of the C interface of MXNet 1.9.1 that compiled functions call, or that call them.
#pragma once

#include <cstddef>
#include <cstdint>

namespace lane {

/// `class CallbackOnComplete` of MXNet's include/mxnet/engine.h.
struct OnComplete {
  void (*callback)(void* engine, void* parameter, const void* error);
  void* engine;
  void* parameter;

  void operator()() const { callback(engine, parameter, nullptr); }
};

/// MXNDArrayGetData and MXNDArrayFree of MXNet's include/mxnet/c_api.h.
struct ArrayFunctions {
  int (*get_data)(void* array, void** data);
  int (*free)(void* array);
};

/// Return the functions from arguments of the C interface.
inline ArrayFunctions functions_of(void* get_data, void* free) {
  return {reinterpret_cast<int (*)(void*, void**)>(get_data), reinterpret_cast<int (*)(void*)>(free)};
}

/// `struct NDArrayOpInfo` of MXNet's include/mxnet/c_api.h.
struct NDArrayOpInfo {
  bool (*forward)(int count, void** arrays, int* tags, void* payload);
  bool (*backward)(int count, void** arrays, int* tags, void* payload);
  bool (*infer_shape)(int count, int* dimensions, unsigned** shapes, void* payload);
  bool (*list_outputs)(char*** names, void* payload);
  bool (*list_arguments)(char*** names, void* payload);
  bool (*declare_backward_dependency)(const int* out_gradients, const int* inputs, const int* outputs, int* count,
                                      int** needed, void* payload);
  void* payloads[6];
};

/// MXEnginePushAsyncND of MXNet's include/mxnet/c_api.h.
using PushFunction = int (*)(void (*function)(void*, void*, void*), void* parameter, void (*deleter)(void*),
                             const void* context, void** reads, int num_reads, void** writes, int num_writes,
                             const void* property, int priority, const char* name, bool wait);

/// The `context` of an operation on the CPU, as `struct Context` of include/mxnet/base.h.
constexpr struct {
  int type = 1;
  int32_t id = 0;
} kCpuContext;

/// The `property` of an operation, `FnProperty` of include/mxnet/engine.h.  The thread that pushes an asynchronous
/// operation also runs it, since it waits for nothing; a prioritized one has threads of its own; a normal one waits for
/// a thread that computes.
constexpr int kNormalOperation = 0, kPrioritizedOperation = 3, kAsyncOperation = 4;

/// Functions of MXNet's include/mxnet/c_api.h in the order of lane/row_arrays.py, and the handle of operator _copyto.
struct MxnetFunctions {
  int (*get_storage_type)(void* array, int* type);
  int (*get_dtype)(void* array, int* dtype);
  int (*get_context)(void* array, int* device, int* number);
  int (*get_shape)(void* array, int* dimensions, const int64_t** shape);
  int (*get_data)(void* array, void** data);
  int (*save)(void* array, size_t* size, const char** bytes);
  int (*load)(const void* bytes, size_t size, void** array);
  int (*free)(void* array);
  PushFunction push;
  int (*invoke)(void* what, int num_inputs, void** inputs, int* num_outputs, void*** outputs, int num_parameters,
                const char** keys, const char** values, const int** storage_types);
  void* copyto;

  /// Push the copy of an array to another one; return whether MXNet takes it.
  bool copy(void* from, void* to) const {
    int outputs = 1;
    void** targets = &to;
    const int* storage_types = nullptr;
    return invoke(copyto, 1, &from, &outputs, &targets, 0, nullptr, nullptr, &storage_types) == 0;
  }
};

}  // namespace lane
