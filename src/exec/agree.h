// How the ranks of a team come to one decision: each brings a text that must be equal, or the reason why it refuses.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "overlace/bootstrap.h"
#include "overlace/team.h"
#include "src/base/status.h"

namespace overlace::exec {

/// What all ranks brought.
struct Agreement {
  base::Status status;             // of the first rank that refuses, as agree_all gives it; ok: all accept
  std::vector<std::string> texts;  // by rank; those of ranks that refuse say why
  std::vector<Errc> codes;         // by rank; ok: it accepts
};
/// Collective. The exchange of agree_all without the comparison of the texts.
Agreement agree_texts(Team& team, const base::Status& mine, std::string_view text);

/// Collective. Ok on all ranks or on none: a rank that refuses keeps its `mine`; the others get the first refusal by
/// rank, under its code and naming that rank. Where all accept, texts that differ are plan_mismatch with both. Errors
/// of the exchange itself only reach ranks that do not refuse.
base::Status agree_all(Team& team, const base::Status& mine, std::string_view text, std::string_view what);

/// What surrounds the exchange: what a rank brings, what all brought, and what becomes of it.
std::string agree_entry(const base::Status& mine, std::string_view text);
Agreement read_agreement(const std::vector<Bytes>& entries, int rank, const base::Status& mine, std::string_view team);
base::Status agree_outcome(const Agreement& all, std::string_view what, std::string_view team);

}  // namespace overlace::exec
