#include "cli/sim/validate.h"

#include "cli/run/outputs.h"
#include "src/base/file.h"
#include "src/sim/validate/validate.h"

namespace overlace::cli {

int sim_validate(const ValidateWords& words) {
  const std::vector<sim::ValidationRow> rows = sim::validate(words.golden, words.ids).value();
  const std::string json = sim::validation_json(rows).dump(2) + "\n";
  print(words.json == "-" ? json : sim::validation_table(rows)).or_throw();
  if (!words.json.empty() && words.json != "-") base::write_file(words.json, json).or_throw();
  if (!words.page.empty()) base::write_file(words.page, sim::validation_page(rows)).or_throw();
  return sim::has_required_miss(rows) ? 1 : 0;
}

}  // namespace overlace::cli
