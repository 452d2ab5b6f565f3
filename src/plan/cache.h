// Decisions in a file, for the next process: one line of JSON each.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "src/base/json.h"
#include "src/plan/decision.h"

namespace overlace::plan {

/// Goes up with every change of candidates, models or rules: older lines no longer count.
inline constexpr int kPlanVersion = 19;

/// A line of a Cache that comes with the library, for a shipped machine. Generated from machine/*.plans.jsonl, which
/// `overlace tune` wrote there.
struct ShippedPlan {
  std::string_view machine, line;
};
extern const ShippedPlan* const kShippedPlans;
extern const int kNumShippedPlans;

class Cache {
 public:
  /// A cache of decisions for this machine. An empty path keeps nothing.
  Cache(std::string path, const spec::Machine& machine);
  /// A cache of lines that text() gave: read once, and nothing is kept in them.
  static Cache of_text(const std::string& text, const spec::Machine& machine);
  /// The lines that come with the library for this machine, none where its numbers are not those of the shipped file.
  static Cache shipped(const spec::Machine& machine);
  /// All lines that count for this machine, as the file is now.
  std::string text() const;
  /// The text of the line for a key, empty where there is none. Reads the file: others may have written.
  std::string find(const std::string& key) const;
  /// Adds the line, and drops those that no longer count: damaged, of another version, of this machine's name with
  /// other numbers, and the oldest where there are too many. What cannot be written is a warning: the plan is good
  /// without. A file that cannot be read, is not empty without a line of ours, or is no regular file is left alone.
  void put(const std::string& key, const Decision& decision) const;
  bool is_on() const { return !path_.empty(); }

 private:
  bool counts(const base::Json& line) const;

  std::string path_, machine_, digest_;
  std::map<std::string, std::string, std::less<>> lines_;  // of_text: by key
};

/// None where the text is empty or damaged (then with a warning), or of another machine, version or key.
std::optional<Decision> decision_of(const std::string& line, const std::string& key, const spec::Machine& machine);

}  // namespace overlace::plan
