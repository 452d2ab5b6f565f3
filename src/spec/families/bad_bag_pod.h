// What is wrong with the bags of a rank: kernels find it, messages name it.
#pragma once

#include <cstdint>

namespace overlace::spec {

enum class BadBagKind : int32_t { first_offset, last_offset, offset, index };

/// The first offset or index of a rank's bags that is none.
struct BadBag {
  BadBagKind kind = BadBagKind::index;
  int64_t feature = 0, bag = 0;  // of the placement, and the sample; of an index
  int64_t position = 0;          // in the bag; of an offset: in offsets
  int64_t value = 0;             // got
  int64_t least = 0, most = 0;   // wanted; of the last offset `most` alone
};

}  // namespace overlace::spec
