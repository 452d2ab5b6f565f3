// Plain structs of the C API as the library's own; whatever would not be well-defined there is refused here.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "overlace/capi.h"
#include "overlace/ops/call.h"
#include "overlace/schedule.h"
#include "overlace/tensor.h"
#include "src/base/status.h"
#include "src/capi/handles.h"

namespace overlace::capi {

base::Result<DType> dtype_of(const Argument& argument, int dtype);
/// ndim 0 gives an undefined view.
base::Result<TensorView> view_of(const Argument& argument, const ovl_tensor& tensor);
/// `ranks` + 1 entries, none for null.
std::vector<int64_t> offsets_of(const int64_t* row_offsets, int ranks);
/// Arguments of a call by their names; messages begin with the operator's name.
base::Result<ops::CallArgs> args_of(const spec::OperatorDef& op, const ovl_arg* args, int count);
base::Result<spec::OpSpec> op_of(const Argument& argument, const ovl_op* op);

}  // namespace overlace::capi
