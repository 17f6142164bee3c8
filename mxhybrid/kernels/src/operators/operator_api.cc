// The C interface of compiled operators of graphs; see api.cc for its conventions.
#include <memory>
#include <stdexcept>
#include <utility>
#include <vector>

#include "base/api_errors.h"
#include "operators/joint_norm_operator.h"
#include "operators/norm_operators.h"
#include "operators/softmax_operators.h"
#include "operators/transfer_operator.h"

using lane::ArrayOperator;
using lane::TransferOperator;
using lane::functions_of;
using lane::guarded;
using lane::ArrayTransfer;

namespace {

std::unique_ptr<TransferOperator::Shape> shape_of(int dimensions, const uint64_t* shape) {
  if (dimensions < 0) return nullptr;
  return std::make_unique<TransferOperator::Shape>(shape, shape + dimensions);
}

}  // namespace

extern "C" {

/// Return an operator of graphs that runs two transfers of float32 arrays, one forwards and one backwards.  A negative
/// number of dimensions means no array.  The functions are MXNDArrayGetData, MXNDArrayFree and MXEnginePushAsyncND.
void* lane_transfer_operator_new(void* forward, void* backward, int input_dimensions, const uint64_t* input,
                                 int output_dimensions, const uint64_t* output, void* get_data, void* free,
                                 void* push) {
  return guarded(
      [&]() -> void* {
        const lane::ArrayFunctions functions = functions_of(get_data, free);
        for (void* share : {forward, backward}) {
          if ((*static_cast<std::shared_ptr<ArrayTransfer>*>(share))->dtype() != lane::Dtype::kFloat32) {
            throw std::runtime_error("a transfer operator needs transfers of type float32");
          }
        }
        return new TransferOperator(*static_cast<std::shared_ptr<ArrayTransfer>*>(forward),
                                    *static_cast<std::shared_ptr<ArrayTransfer>*>(backward),
                                    shape_of(input_dimensions, input), shape_of(output_dimensions, output), functions,
                                    reinterpret_cast<lane::PushFunction>(push));
      },
      nullptr);
}
/// Return the attribute `info` of MXNet's operator _NDArray.
const void* lane_transfer_operator_info(void* transfer) { return static_cast<TransferOperator*>(transfer)->info(); }
/// Delete an operator that no graph calls any more.
void lane_transfer_operator_close(void* transfer) { delete static_cast<TransferOperator*>(transfer); }

/// Return an operator of running averages.  The functions are MXNDArrayGetData and MXNDArrayFree.  `sizes` are the numbers of elements of `arrays` arrays of statistics.  An average has `counts` elements, a factor of
/// its own, and `terms` statistics; each of these has the number of an array, an offset in it, and a factor.
void* lane_average_operator_new(uint32_t arrays, const uint64_t* sizes, uint32_t averages, const uint64_t* counts,
                                const double* factors, const uint64_t* terms, const uint64_t* numbers,
                                const uint64_t* offsets, const double* term_factors, void* get_data, void* free) {
  return guarded([&]() -> void* {
    std::vector<lane::AverageOperator::Average> list;
    for (uint32_t i = 0; i < averages; ++i) {
      list.push_back({counts[i], factors[i], {}});
      for (uint64_t k = 0; k < terms[i]; ++k) list.back().terms.push_back({*numbers++, *offsets++, *term_factors++});
    }
    return static_cast<ArrayOperator*>(
        new lane::AverageOperator({sizes, sizes + arrays}, std::move(list), functions_of(get_data, free)));
  }, nullptr);
}
/// Return an operator of a softmax over several workers, see softmax_operators.h.
void* lane_softmax_parts_operator_new(int dimensions, const uint64_t* shape, uint64_t axis, void* get_data,
                                      void* free) {
  return guarded([&]() -> void* {
    const auto part_shape = shape_of(dimensions, shape);
    if (!part_shape) throw std::runtime_error("a softmax operator needs the shape of its part");
    return static_cast<ArrayOperator*>(
        new lane::SoftmaxPartsOperator(*part_shape, axis, functions_of(get_data, free)));
  }, nullptr);
}
void* lane_softmax_operator_new(int dimensions, const uint64_t* shape, uint64_t axis, uint64_t count, int is_log,
                                void* get_data, void* free) {
  return guarded([&]() -> void* {
    const auto part_shape = shape_of(dimensions, shape);
    if (!part_shape) throw std::runtime_error("a softmax operator needs the shape of its part");
    return static_cast<ArrayOperator*>(
        new lane::SoftmaxOperator(*part_shape, axis, count, is_log != 0, functions_of(get_data, free)));
  }, nullptr);
}
/// Return a BatchNorm over several workers.  The transfers are those of its moments and of their gradients; both may be
/// null.  The functions are MXNDArrayGetData, MXNDArrayFree and MXEnginePushAsyncND.
void* lane_joint_norm_operator_new(void* forward, void* backward, int dimensions, const uint64_t* shape, uint64_t axis,
                                   uint32_t parts, const double* shares, uint32_t position, double epsilon,
                                   int fixes_gamma, int rectifies, int pools, void* get_data, void* free,
                                   void* push) {
  return guarded([&]() -> void* {
    const auto part_shape = shape_of(dimensions, shape);
    if (!part_shape) throw std::runtime_error("a BatchNorm needs the shape of its part");
    const auto transfer = [](void* share) {
      return share ? *static_cast<std::shared_ptr<ArrayTransfer>*>(share) : nullptr;
    };
    return static_cast<ArrayOperator*>(new lane::JointNormOperator(
        {*part_shape, axis, {shares, shares + parts}, position, epsilon, fixes_gamma != 0, rectifies != 0, pools != 0},
        transfer(forward), transfer(backward), functions_of(get_data, free), reinterpret_cast<lane::PushFunction>(push)));
  }, nullptr);
}
/// Delete an operator that no graph calls any more.
void lane_array_operator_close(void* array_operator) { delete static_cast<ArrayOperator*>(array_operator); }
/// Return the attribute `info` of MXNet's operator _NDArray.
const void* lane_array_operator_info(void* array_operator) {
  return static_cast<ArrayOperator*>(array_operator)->info();
}

}  // extern "C"
