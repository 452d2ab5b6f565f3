// Options of an outer rule: defaults filled in, refused where they make no sense, compared between ranks.
#pragma once

#include <cstdint>
#include <string>

#include "overlace/co2.h"
#include "src/base/status.h"

namespace overlace::train {

/// With the rule's own values where none were given. Errc::invalid_argument: argument, value, wanted.
base::Result<Co2Options> resolve(const Co2Options& options);
/// One line with every value that all ranks must have alike.
std::string to_text(const Co2Options& options);
/// What to tell the user of a choice that is legal and unwise, with the bound of stability; empty if nothing.
std::string warning_of(const Co2Options& options);

/// Whether increments are taken in at a later boundary than the one that sends them.
bool is_stale(OuterRule rule);
/// The knobs of a round, or of streaming's exchange `round`; `options` are resolved.
Co2Knobs knobs_of(const Co2Options& options, int64_t round);
/// Inner steps from that exchange to the next; `options` are resolved.
int64_t steps_of_exchange(const Co2Options& options, int64_t round);
/// Whether a round has an outer momentum; `options` are resolved.
bool has_momentum(const Co2Options& options);
/// Co2Options::keep of so many groups; `options` are resolved.
double keep_of(const Co2Options& options, int64_t groups);

/// One round shrinks the error of the loss h/2 x^2 by 1 - c. Whether the outer iteration of rules co2 and eager is
/// stable then, with kappa, a constant gap, keep and no clip: what groups have in common, and with keep how they
/// differ.
bool is_stable(double kappa, double alpha, double beta, double lambda, double c, double keep = 0);

}  // namespace overlace::train
