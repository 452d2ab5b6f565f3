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

/// One round shrinks the error of the loss h/2 x^2 by 1 - c. Whether the outer iteration of rule co2 is stable then,
/// with kappa, a constant gap and no clip.
bool is_stable(double kappa, double alpha, double beta, double lambda, double c);

}  // namespace overlace::train
