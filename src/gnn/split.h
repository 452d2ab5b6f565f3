// Parts of a dataset's labelled vertices.
#pragma once

#include <cstdint>

namespace overlace::gnn {

/// What training, the choice of its best state and the final figure take. The values stand in files.
enum class Split : uint32_t { train = 0, valid = 1, test = 2 };
inline constexpr Split kSplits[] = {Split::train, Split::valid, Split::test};

}  // namespace overlace::gnn
