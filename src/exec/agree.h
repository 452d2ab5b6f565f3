// How the ranks of a team come to one decision: each brings a text that must be equal, or the reason why it refuses.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "overlace/bootstrap.h"
#include "overlace/team.h"
#include "src/base/status.h"

namespace overlace::exec {

/// Collective. Ok on all ranks or on none: a rank that refuses keeps its `mine`; the others get the first refusal by
/// rank, under its code and naming that rank. Where all accept, texts that differ are plan_mismatch with both. Errors
/// of the exchange itself only reach ranks that do not refuse.
base::Status agree_all(Team& team, const base::Status& mine, std::string_view text, std::string_view what);

/// The two halves of agree_all around the exchange.
std::string agree_entry(const base::Status& mine, std::string_view text);
base::Status agree_outcome(const std::vector<Bytes>& entries, int rank, const base::Status& mine, std::string_view what,
                           std::string_view team);

}  // namespace overlace::exec
