// What calls of a channel have posed and found sound: a call of the same shapes is looked at no further than its
// memory.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "overlace/channel.h"
#include "overlace/operator.h"
#include "overlace/ops/call.h"
#include "src/ops/common/check.h"

namespace overlace::ops {

/// A problem and the call that posed it first.
struct Problem {
  const spec::OperatorDef* def = nullptr;
  CallArgs args{};  // shapes (of data: one of many), strides, dtypes and options; addresses are null
  spec::OpSpec op{};
};
/// Nothing is checked.
std::shared_ptr<const Problem> problem_of(const spec::OperatorDef& def, const CallArgs& args, int ranks);

/// The problems of one channel, the last two of those that share a place.
class KnownProblems {
 public:
  /// That of `channel`; null before its first call.
  static KnownProblems* of(Channel& channel);
  /// Null if no call with such arguments is known.
  std::shared_ptr<const Problem> find(const spec::OperatorDef& def, const CallArgs& args) const;
  /// One whose call passed all checks.
  void keep(std::shared_ptr<const Problem> problem);

 private:
  static constexpr size_t kPlaces = 256;  // of two: many more shapes than the layers of a large model have
  std::array<std::array<std::shared_ptr<const Problem>, 2>, kPlaces> places_;
};

/// Whether the tensors of a call that poses a known problem pass what check_args asks of memory, and of the shapes of
/// data. Where not, check_args says why.
bool has_sound_memory(const Site& site, const Problem& problem, const CallArgs& args);

}  // namespace overlace::ops
