// Words of `overlace gnn`.
#pragma once

#include "cli/gnn/gnn.h"

namespace CLI {
class App;
}

namespace overlace::cli {

void add_gnn(CLI::App& app, GnnWords* words);
/// Runs the subcommand that was parsed.
int run_gnn(const CLI::App& gnn, const GnnWords& words);

}  // namespace overlace::cli
