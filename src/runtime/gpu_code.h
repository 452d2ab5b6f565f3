// Which GPUs have code in a build.
#pragma once

#include <string_view>

#include "src/base/status.h"

namespace overlace::runtime {

/// Whether code for `architectures`, in the words of CMAKE_CUDA_ARCHITECTURES parted by commas ("90a-real", "80",
/// "80-virtual"), runs on a GPU of this compute capability. Words without a number (native, all) say nothing: true.
bool has_code_for(std::string_view architectures, int major, int minor);

/// not_supported, with the GPU and both capabilities, where there is no such code.
base::Status check_code_for(std::string_view architectures, int ordinal, std::string_view gpu, int major, int minor);

}  // namespace overlace::runtime
