#include "cli/sim/check.h"

#include "cli/problem.h"
#include "cli/run/outputs.h"
#include "src/base/file.h"
#include "src/base/format.h"
#include "src/base/json.h"
#include "src/study/validate/properties.h"
#include "src/study/validate/validate.h"

namespace overlace::cli {

int sim_check(const CheckWords& words) {
  using base::Json;
  const spec::Machine machine = spec::find_machine(words.machine);
  const std::vector<study::Property> properties = study::check_properties(machine).value();
  std::string text = machine_line(machine) + "\n";
  Json list = Json::array();
  int failures = 0;
  for (const study::Property& p : properties) {
    failures += p.failures;
    text += base::format("{:<4} {:<78} {:>4} cases{}\n", p.failures == 0 ? "ok" : "MISS", p.name, p.cases,
                         p.failures == 0 ? "" : base::format(", {} fail: {}", p.failures, p.first_failure));
    Json one = Json::object();
    one.set("property", p.name).set("cases", p.cases).set("failures", p.failures);
    if (p.failures > 0) one.set("first_failure", p.first_failure);
    list.push_back(std::move(one));
  }
  Json json = Json::object();
  json.set("machine", machine.name).set("properties", std::move(list));
  bool misses = false;
  if (words.validates) {
    const std::vector<study::ValidationRow> rows = study::validate(words.golden, {}).value();
    misses = study::has_required_miss(rows);
    text += "\n" + study::validation_table(rows);
    json.set("validation", study::validation_json(rows));
  }
  write_result(with_schema("sim_check", std::move(json)), text, words.json).or_throw();
  return failures > 0 || misses ? 1 : 0;
}

int sim_validate(const ValidateWords& words) {
  const std::vector<study::ValidationRow> rows = study::validate(words.golden, words.ids).value();
  const base::Json json = with_schema("sim_validate", study::validation_json(rows));
  write_result(json, study::validation_table(rows), words.json).or_throw();
  if (!words.page.empty()) base::write_file(words.page, study::validation_page(rows)).or_throw();
  return study::has_required_miss(rows) ? 1 : 0;
}

}  // namespace overlace::cli
