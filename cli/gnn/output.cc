#include "cli/gnn/output.h"

#include <cstdio>

#include "src/base/file.h"

namespace overlace::cli {

int finish(const base::Json& json, const std::string& text, const std::string& target) {
  if (target.empty() || target != "-") std::fputs(text.c_str(), stdout);
  if (target == "-") std::fputs((json.dump(2) + "\n").c_str(), stdout);
  if (!target.empty() && target != "-") base::write_file(target, json.dump(2) + "\n").or_throw();
  return 0;
}

std::string line(std::string_view key, std::string_view value) { return base::format("  {:<16} {}\n", key, value); }

std::string gigabytes(int64_t bytes) { return base::format("{:.3f} GB", static_cast<double>(bytes) / 1e9); }

}  // namespace overlace::cli
