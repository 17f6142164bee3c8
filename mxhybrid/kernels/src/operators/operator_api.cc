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
using lane::functions_of;
using lane::guarded;
using lane::PushFunction;

namespace {

/// A reference to a transfer.
using Share = std::shared_ptr<lane::ArrayTransfer>;

ArrayOperator::Shape shape_of(int dimensions, const uint64_t* shape) { return {shape, shape + dimensions}; }

/// Return the shapes of a token and an array; a negative number of dimensions means no array.
std::vector<ArrayOperator::Shape> token_and(int dimensions, const uint64_t* shape) {
  std::vector<ArrayOperator::Shape> shapes = {{1}};
  if (dimensions >= 0) shapes.push_back(shape_of(dimensions, shape));
  return shapes;
}

}  // namespace

// The functions in the last arguments are MXNDArrayGetData, MXNDArrayFree and MXEnginePushAsyncND.
extern "C" {

/// Return an operator of graphs that runs two transfers of float32 arrays, one forwards and one backwards.  A negative
/// number of dimensions means no array.
ArrayOperator* lane_transfer_operator_new(const Share* forward, const Share* backward, int input_dimensions,
                                          const uint64_t* input, int output_dimensions, const uint64_t* output,
                                          void* get_data, void* free, PushFunction push) {
  return guarded([&]() -> ArrayOperator* {
    for (const Share* transfer : {forward, backward}) {
      if ((*transfer)->dtype() != lane::Dtype::kFloat32) {
        throw std::runtime_error("a transfer operator needs transfers of type float32");
      }
    }
    return new lane::TransferOperator(*forward, *backward, token_and(input_dimensions, input),
                                      token_and(output_dimensions, output), functions_of(get_data, free), push);
  });
}
/// Return an operator of running averages.  `sizes` are the numbers of elements of `arrays` arrays of statistics.  An
/// average has `counts` elements, a factor of its own, and `terms` statistics; each of these has the number of an
/// array, an offset in it, and a factor.
ArrayOperator* lane_average_operator_new(uint32_t arrays, const uint64_t* sizes, uint32_t averages,
                                         const uint64_t* counts, const double* factors, const uint64_t* terms,
                                         const uint64_t* numbers, const uint64_t* offsets, const double* term_factors,
                                         void* get_data, void* free) {
  return guarded([&]() -> ArrayOperator* {
    std::vector<lane::AverageOperator::Average> list;
    for (uint32_t i = 0; i < averages; ++i) {
      list.push_back({counts[i], factors[i], {}});
      for (uint64_t k = 0; k < terms[i]; ++k) list.back().terms.push_back({*numbers++, *offsets++, *term_factors++});
    }
    return new lane::AverageOperator({sizes, sizes + arrays}, std::move(list), functions_of(get_data, free));
  });
}
/// Return an operator of a softmax over several workers, see softmax_operators.h.
ArrayOperator* lane_softmax_parts_operator_new(int dimensions, const uint64_t* shape, uint64_t axis, void* get_data,
                                               void* free) {
  return guarded([&]() -> ArrayOperator* {
    return new lane::SoftmaxPartsOperator(shape_of(dimensions, shape), axis, functions_of(get_data, free));
  });
}
ArrayOperator* lane_softmax_operator_new(int dimensions, const uint64_t* shape, uint64_t axis, uint64_t count,
                                         int is_log, void* get_data, void* free) {
  return guarded([&]() -> ArrayOperator* {
    return new lane::SoftmaxOperator(shape_of(dimensions, shape), axis, count, is_log != 0,
                                     functions_of(get_data, free));
  });
}
/// Return a BatchNorm over several workers.  The transfers are those of its moments and of their gradients; both may be
/// null.
ArrayOperator* lane_joint_norm_operator_new(const Share* forward, const Share* backward, int dimensions,
                                            const uint64_t* shape, uint64_t axis, uint32_t parts, const double* shares,
                                            uint32_t position, double epsilon, int fixes_gamma, int rectifies,
                                            int pools, void* get_data, void* free, PushFunction push) {
  return guarded([&]() -> ArrayOperator* {
    return new lane::JointNormOperator({shape_of(dimensions, shape), axis, {shares, shares + parts}, position, epsilon,
                                        fixes_gamma != 0, rectifies != 0, pools != 0},
                                       forward ? *forward : nullptr, backward ? *backward : nullptr,
                                       functions_of(get_data, free), push);
  });
}
/// Delete an operator that no graph calls any more.
void lane_array_operator_close(ArrayOperator* array_operator) { delete array_operator; }
/// Return the attribute `info` of MXNet's operator _NDArray.
const void* lane_array_operator_info(ArrayOperator* array_operator) { return array_operator->info(); }

}  // extern "C"
