#include "src/study/validate/validate.h"

#include <algorithm>

#include "src/study/validate/figures.h"

namespace overlace::study {
namespace {

struct Figure {
  const char* id;
  void (*rows)(const std::string&, Rows*);
};
constexpr Figure kFigures[] = {{"V1", validate_gemm},      {"V2", validate_all_reduce}, {"V3", validate_megatron},
                               {"V4", validate_scale_out}, {"V5", validate_sm_copy},    {"V6", validate_astra_sim},
                               {"V7", validate_t3},        {"V9", validate_dlrm},       {"V12", validate_mesh}};

std::string number(double value) {
  if (std::isnan(value)) return "-";
  return base::format("{:.4g}", value);
}

std::string error_text(const ValidationRow& row) {
  if (std::isnan(row.published)) return "-";
  if (row.unit == "%") return base::format("{:+.1f} points", row.ours - row.published);
  return base::format("{:+.1f} %", (row.ours / row.published - 1) * 100);
}

std::string verdict(const ValidationRow& row) {
  if (row.passes()) return "pass";
  const double by = row.ours < row.least ? row.least - row.ours : row.ours - row.most;
  return base::format("{} by {:.3g}", row.is_must ? "MISS" : "miss", by);
}

struct Cells {
  std::string figure, published, ours, error, accepted, baseline, verdict;
};

Cells cells_of_row(const ValidationRow& row) {
  return {
      row.figure + (row.unit.empty() ? "" : ", " + row.unit), number(row.published), number(row.ours), error_text(row),
      base::format("{:.4g} to {:.4g}", row.least, row.most),  number(row.baseline),  verdict(row)};
}

std::string count_of(const std::vector<ValidationRow>& rows) {
  int misses = 0, required = 0;
  for (const ValidationRow& row : rows) {
    misses += row.passes() ? 0 : 1;
    required += row.passes() || !row.is_must ? 0 : 1;
  }
  return base::format("{} rows, {} misses, {} of them of rows that must pass\n", rows.size(), misses, required);
}

base::Json number_json(double value) { return std::isnan(value) ? base::Json() : base::Json(value); }

}  // namespace

Golden load(const std::string& golden, const std::string& path) {
  base::Result<Golden> table = Golden::load(golden + "/" + path);
  table.status().or_throw();
  return std::move(*table);
}

std::vector<std::string> validation_ids() {
  std::vector<std::string> ids;
  for (const Figure& figure : kFigures) ids.emplace_back(figure.id);
  return ids;
}

base::Result<std::vector<ValidationRow>> validate(const std::string& golden, const std::vector<std::string>& ids) {
  const std::vector<std::string> known = validation_ids();
  for (const std::string& id : ids) {
    if (std::find(known.begin(), known.end(), id) != known.end()) continue;
    std::string list;
    for (const std::string& one : known) list += (list.empty() ? "" : ", ") + one;
    return base::invalid_argument("validate: {} is no figure, wanted {}", id, list);
  }
  Rows rows;
  try {
    for (const Figure& figure : kFigures)
      if (ids.empty() || std::find(ids.begin(), ids.end(), figure.id) != ids.end()) figure.rows(golden, &rows);
  } catch (...) {
    return base::status_of_current_exception();
  }
  return rows;
}

std::string validation_table(const std::vector<ValidationRow>& rows) {
  constexpr const char* kLine = "{:<4} {:<74} {:>9} {:>9} {:>13} {:>17} {:>10}  {}\n";
  std::string table = base::format(kLine, "id", "figure", "published", "ours", "error", "accepted", "do nothing", "");
  for (const ValidationRow& row : rows) {
    const Cells cells = cells_of_row(row);
    table += base::format(kLine, row.id, cells.figure, cells.published, cells.ours, cells.error, cells.accepted,
                          cells.baseline, cells.verdict);
  }
  return table + count_of(rows);
}

std::string validation_page(const std::vector<ValidationRow>& rows) {
  std::string page =
      "# The simulator beside published numbers\n\n"
      "Written by `overlace sim validate --page docs/results/simulator.md`; do not edit. The models, their constants "
      "and\n"
      "which of them were fitted to what: [design/simulator_models.md](../design/simulator_models.md). Every table of\n"
      "published numbers names its source (`tests/golden`). `do nothing`: peak rates, no latency, no contention; "
      "`MISS`: a row\n"
      "that must pass does not, `miss`: one that should.\n\n"
      "| id | figure | published | ours | error | accepted | do nothing | |\n|---|---|---|---|---|---|---|---|\n";
  for (const ValidationRow& row : rows) {
    const Cells cells = cells_of_row(row);
    page += base::format("| {} | {} | {} | {} | {} | {} | {} | {} |\n", row.id, cells.figure, cells.published,
                         cells.ours, cells.error, cells.accepted, cells.baseline, cells.verdict);
  }
  return page + "\n" + count_of(rows);
}

base::Json validation_json(const std::vector<ValidationRow>& rows) {
  base::Json list = base::Json::array();
  for (const ValidationRow& row : rows) {
    base::Json one = base::Json::object();
    one.set("id", row.id).set("figure", row.figure);
    one.set("unit", row.unit).set("published", number_json(row.published));
    one.set("ours", row.ours).set("least", row.least);
    one.set("most", row.most).set("do_nothing", number_json(row.baseline));
    one.set("must", row.is_must).set("pass", row.passes());
    list.push_back(std::move(one));
  }
  return list;
}

bool has_required_miss(const std::vector<ValidationRow>& rows) {
  return std::any_of(rows.begin(), rows.end(), [](const ValidationRow& row) { return row.is_must && !row.passes(); });
}

}  // namespace overlace::study
