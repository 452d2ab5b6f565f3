// `overlace bench`: hands over to the driver of the benches, which is installed beside this program.
#pragma once

#include <string>
#include <vector>

namespace overlace::cli {

/// Replaces this process by the driver with these arguments; returns only the exit status of a failure, which stderr
/// shows.
int bench(const std::vector<std::string>& arguments);

}  // namespace overlace::cli
