// Which of several ranks' failures is the cause, and its words.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "src/base/status.h"

namespace overlace::cli {

inline constexpr int kExitWrong = 1;  // ran, result wrong (docs/reference/errors.md)

struct RankFailure {
  int rank = 0;
  base::Status status;
};

/// One record of a pipe that several ranks write to; short enough to arrive whole.
std::string encode_failure(const RankFailure& failure);
/// All records; what does not parse is left out.
std::vector<RankFailure> decode_failures(std::string_view bytes);

/// The first that is not the consequence of another rank's failure, else the first.
std::optional<RankFailure> first_cause(const std::vector<RankFailure>& failures);

/// "rank 1: ..." unless all ranks said the same.
std::string failure_text(const RankFailure& cause, const std::vector<RankFailure>& failures);

}  // namespace overlace::cli
