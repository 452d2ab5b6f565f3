// How the ranks of a team come to one decision: each brings a text that must be equal, or the reason why it refuses.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "overlace/bootstrap.h"
#include "overlace/team.h"
#include "src/base/status.h"

namespace overlace::exec {

/// What all ranks brought.
struct Agreement {
  base::Status status;             // mine, else the first refusal by rank, under its code and naming it; ok: all accept
  std::vector<std::string> texts;  // by rank; those of ranks that refuse say why
  std::vector<Errc> codes;         // by rank; ok: it accepts
};
/// Collective. A rank that refuses keeps its `mine`; errors of the exchange itself reach the others only.
Agreement agree_texts(Team& team, const base::Status& mine, std::string_view text);

/// What comes of a meeting of a channel's call: those that come have no program for it yet.
struct CallMeeting {
  Agreement all;                                // texts of ranks that passed by are empty
  std::vector<std::optional<uint64_t>> passed;  // by rank: hash of the key of its program; none: it came
  bool has_passed() const;                      // a rank did
};
/// Collective, but for ranks that pass by (Control::pass).
CallMeeting meet_for_call(Team& team, uint64_t group, uint32_t number, const base::Status& mine, std::string_view text);

/// What surrounds the exchange: what a rank brings, what all brought, and what becomes of it: the refusal, or where all
/// accept and texts differ plan_mismatch with both.
std::string agree_entry(const base::Status& mine, std::string_view text);
Agreement read_agreement(const std::vector<Bytes>& entries, int rank, const base::Status& mine, std::string_view team);
base::Status agree_outcome(const Agreement& all, std::string_view what, std::string_view team);

}  // namespace overlace::exec
