// An operator's problem and a machine, as words of the command line.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "overlace/machine.h"
#include "overlace/schedule.h"
#include "src/spec/check.h"

namespace overlace::cli {

/// M of the whole team, N and K as one rank sees them; ranks 0: the machine's. Throws InvalidArgument with the
/// option.
spec::OpSpec op_of(const std::string& op, int64_t m, int64_t n, int64_t k, int ranks, const std::string& dtype,
                   const spec::Machine& machine, int max_ranks);

/// Sets the fields that an operator has besides sizes, each "NAME=VALUE" or "NAME=@FILE", and the sizes that follow
/// from them. Throws InvalidArgument with the option.
void set_fields(spec::OpSpec* op, const std::vector<std::string>& words);

/// "none" or "swiglu", which a schedule of another operator than ag_gemm refuses. Throws InvalidArgument.
spec::Activation activation_of(const std::string& name);
/// "rows" or "cols", which a schedule of an operator that exchanges nothing refuses. Throws InvalidArgument.
spec::Exchange exchange_of(const std::string& name);

/// "8GiB", "512MiB", "1000000": bytes. Throws InvalidArgument with the option. 0 where it may be none.
int64_t parse_size(const std::string& option, const std::string& text, bool may_be_none = false);

/// A shipped machine or FILE.json; "": the H200s that `auto` on as many ranks goes by, 0 for 4. Throws InvalidArgument.
spec::Machine machine_of(const std::string& name, int ranks);

/// The share of a machine's numbers that were measured elsewhere or assumed.
double share_of_priors(const spec::Machine& machine);

/// "machine h200x4 (digest 5f0c1a2b, 2026-11-21, 23 % of its numbers are priors)"
std::string machine_line(const spec::Machine& machine);

/// The static checks; of schedules that only measure a part without what they need not cover.
spec::CheckReport check_report(const spec::Schedule& schedule, const spec::Machine& machine);

}  // namespace overlace::cli
