#include "cli/sim/losses.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "cli/problem.h"
#include "cli/run/outputs.h"
#include "cli/sim/plot.h"
#include "cli/sim/sim.h"
#include "cli/word_list.h"
#include "overlace/error.h"
#include "overlace/machine.h"
#include "src/base/file.h"
#include "src/base/format.h"
#include "src/base/json.h"
#include "src/spec/expand.h"
#include "src/spec/operators.h"
#include "src/study/losses.h"

namespace overlace::cli {
namespace {

using base::Json;

constexpr int kMaxLossRanks = 1024;
constexpr const char* kTransports[] = {"ce", "sm", "epilogue"};

struct LossRow {
  std::string family;
  int64_t degree = 1;
  study::PartTimes parts;
  double store_us = 0;  // the same bytes by kernels of stores on all SMs; 0: the machine does not say
};

struct Losses {
  study::PartTimes whole;  // one GEMM, one transfer to each peer
  double whole_store_us = 0;
  std::vector<LossRow> rows;
};

/// Its GEMMs are cut into parts that are rows or columns of a result.
bool has_parts(const spec::OperatorDef& op) {
  return !op.flow.sums_rows && spec::find_family(op.name, spec::ClosedForm::slabs);
}

/// Cuts GEMMs. A family that needs to know of hosts is left out, and one without a degree whose form another has.
bool is_decomposition(const spec::FamilyDef& family) {
  using enum spec::ClosedForm;
  const bool cuts = family.form != none && family.form != library && family.form != serial && family.form != hosts;
  return cuts && (family.has_degree || family.form != per_shard);
}

Losses losses_of(const spec::OpSpec& op, const spec::Machine& machine, const std::vector<int64_t>& degrees) {
  Losses out;
  out.whole = study::part_times(spec::make_bound(op, spec::Purpose::compute), machine).value();
  const study::PartTimes transfer = study::part_times(spec::make_bound(op, spec::Purpose::comm), machine).value();
  out.whole.transfers = transfer.transfers;
  out.whole.transfer_us = transfer.transfer_us;
  const bool is_gather = spec::gathers(op.op);
  const double row_bytes = static_cast<double>(is_gather ? op.k : op.n) *
                           static_cast<double>(dtype_bytes(is_gather ? op.dtype : op.out_dtype));
  const double shard = std::ceil(static_cast<double>(op.m) / op.ranks) * row_bytes;
  const int passes = spec::flow_of(op.op).passes;
  const auto store_us = [&](int64_t parts) {
    return passes * study::store_transfer_us(machine, shard, op.ranks - 1, parts, machine.sms);
  };
  out.whole_store_us = store_us(1);
  for (const spec::FamilyDef& def : spec::find_operator(op.op)->families) {
    if (!is_decomposition(def)) continue;
    const std::string family(def.name);
    std::string last;
    for (const int64_t degree : degrees) {
      try {
        const spec::Schedule schedule = spec::make_schedule(op, family, static_cast<int>(degree));
        const std::string digest = spec::digest(schedule);
        if (digest == last) break;  // a family without degrees
        last = digest;
        const base::Result<study::PartTimes> parts = study::part_times(schedule, machine);
        if (!parts.ok()) continue;
        out.rows.push_back({family, degree, *parts, store_us(parts->transfers > 0 ? degree : 1)});
      } catch (const InvalidArgument&) {  // cannot be cut so often
      } catch (const Unsupported&) {
      }
    }
  }
  return out;
}

double loss(double parts_us, double whole_us) { return whole_us > 0 && parts_us > 0 ? parts_us / whole_us - 1 : 0; }

std::string percent(double parts_us, double whole_us) {
  return whole_us > 0 && parts_us > 0 ? base::format("{:+.1f} %", 100 * loss(parts_us, whole_us)) : "-";
}

std::string table_of(const spec::OpSpec& op, const spec::Machine& machine, const Losses& losses) {
  const study::PartTimes& whole = losses.whole;
  std::string out = base::format("{} | {}\nwhole: GEMM {:.1f} us; transfer by copies {:.1f} us, by stores {}\n\n",
                                 op.to_string(), machine_line(machine), whole.product_us, whole.transfer_us,
                                 losses.whole_store_us > 0 ? base::format("{:.1f} us", losses.whole_store_us) : "-");
  out += base::format("{:<22}{:>3}{:>10}{:>11}{:>10}{:>8}{:>11}{:>10}{:>11}\n", "in parts, one by one", "q", "GEMMs",
                      "us", "DIL", "copies", "us", "DIL", "stores DIL");
  for (const LossRow& row : losses.rows) {
    const study::PartTimes& p = row.parts;
    out += base::format("{:<22}{:>3}{:>10}{:>11.1f}{:>10}{:>8}{:>11.1f}{:>10}{:>11}\n", row.family, row.degree,
                        p.products, p.product_us, percent(p.product_us, whole.product_us), p.transfers, p.transfer_us,
                        percent(p.transfer_us, whole.transfer_us), percent(row.store_us, losses.whole_store_us));
  }
  out += base::format("\n{:<22}{:>26}{:>26}\n", "beside each other", "GEMM, CIL", "transfer, CIL");
  for (const char* transport : kTransports) {
    const study::Mutual m = study::mutual_slowdown(machine, transport);
    const auto cell = [&](bool has, double factor) {
      return has ? base::format("{:+.1f} % ({})", 100 * (factor - 1),
                                m.source == spec::Source::prior ? "prior" : "measured")
                 : "not in the file";
    };
    out += base::format("{:<22}{:>26}{:>26}\n", transport, cell(m.has_product, m.product),
                        cell(m.has_transfer, m.transfer));
  }
  return out +
         "ce: copies out and in. sm: stores of CTAs that do nothing else. epilogue: stores of the GEMM's tiles.\n";
}

Json json_of(const spec::OpSpec& op, const spec::Machine& machine, const Losses& losses) {
  Json rows = Json::array(), mutual = Json::array();
  const study::PartTimes& whole = losses.whole;
  for (const LossRow& row : losses.rows) {
    Json one = Json::object();
    one.set("family", row.family).set("degree", row.degree);
    one.set("products", row.parts.products).set("product_us", row.parts.product_us);
    one.set("product_dil", loss(row.parts.product_us, whole.product_us));
    one.set("transfers", row.parts.transfers).set("transfer_us", row.parts.transfer_us);
    if (row.parts.transfers > 0) one.set("transfer_dil", loss(row.parts.transfer_us, whole.transfer_us));
    if (row.store_us > 0) one.set("store_us", row.store_us).set("store_dil", loss(row.store_us, losses.whole_store_us));
    rows.push_back(std::move(one));
  }
  for (const char* transport : kTransports) {
    const study::Mutual m = study::mutual_slowdown(machine, transport);
    Json one = Json::object();
    one.set("transport", transport);
    if (m.has_product) one.set("product_cil", m.product - 1);
    if (m.has_transfer) one.set("transfer_cil", m.transfer - 1);
    one.set("source", m.source == spec::Source::prior ? "prior" : "measured");
    mutual.push_back(std::move(one));
  }
  Json out = Json::object();
  out.set("problem", op.to_string()).set("machine", machine.name).set("machine_digest", spec::digest(machine));
  out.set("share_of_priors", share_of_priors(machine)).set("product_us", whole.product_us);
  out.set("transfer_us", whole.transfer_us).set("store_us", losses.whole_store_us);
  out.set("decomposition", std::move(rows)).set("contention", std::move(mutual));
  return out;
}

std::string svg_of(const spec::OpSpec& op, const spec::Machine& machine, const Losses& losses) {
  std::vector<PlotPanel> panels(4);
  panels[0].title = "GEMM in parts, one by one";
  panels[1].title = "transfer in parts, one by one";
  const auto add = [](PlotPanel& panel, const std::string& name, double x, double y) {
    if (!(y > 0)) return;
    auto line = std::find_if(panel.lines.begin(), panel.lines.end(), [&](const PlotLine& l) { return l.name == name; });
    if (line == panel.lines.end()) line = panel.lines.insert(panel.lines.end(), {name, {}, {}});
    if (std::find(line->x.begin(), line->x.end(), x) != line->x.end()) return;  // families that send alike
    line->x.push_back(x);
    line->y.push_back(y);
  };
  for (const LossRow& row : losses.rows) {
    const auto q = static_cast<double>(row.degree);
    add(panels[0], row.family, q, 1 + loss(row.parts.product_us, losses.whole.product_us));
    if (row.parts.transfers == 0) continue;
    add(panels[1],
        spec::form_of(op.op, row.family) == spec::ClosedForm::slabs ? "copies of columns (2-D)" : "copies of rows", q,
        1 + loss(row.parts.transfer_us, losses.whole.transfer_us));
    if (row.store_us > 0) add(panels[1], "stores of all SMs", q, 1 + loss(row.store_us, losses.whole_store_us));
  }
  panels[2].title = "GEMM beside a transfer";
  panels[3].title = "transfer beside a GEMM";
  panels[2].x_label = "transfer's share of its full rate";
  panels[3].x_label = "GEMM's share of its full rate";
  for (const char* transport : kTransports) {
    const study::Mutual m = study::mutual_slowdown(machine, transport);
    for (const double share : {0.125, 0.25, 0.5, 1.0}) {
      if (m.has_product) add(panels[2], transport, share, std::pow(m.product, share));
      if (m.has_transfer) add(panels[3], transport, share, std::pow(m.transfer, share));
    }
  }
  return plot_svg(op.to_string() + " on " + machine.name + ": decomposition and contention", "parts of a shard (q)",
                  "times as long", panels);
}

}  // namespace

int sim_characterise(const LossWords& words) {
  const bool is_html = words.plot.ends_with(".html");
  if (!words.plot.empty() && !is_html && !words.plot.ends_with(".svg"))
    refuse(base::format("--plot is {}, wanted a name that ends in .svg or .html", words.plot));
  const std::vector<int64_t> degrees = numbers_of("--degrees", words.degrees, kMostDegree);
  const spec::Machine machine = machine_of(words.machine, words.ranks);
  if (!machine.has_costs())
    throw_error(Errc::not_supported,
                base::format("sim: machine {} has limits only, wanted costs of gemm, copy and link", machine.name));
  const spec::OpSpec op = op_of(words.op, words.m, words.n, words.k, words.ranks, words.dtype, machine, kMaxLossRanks);
  const spec::OperatorDef* def = spec::find_operator(op.op);
  if (def == nullptr || !has_parts(*def))
    refuse(base::format("operator is {}, wanted {}", op.op, spec::operator_names(has_parts)));
  if (op.ranks < 2) refuse(base::format("--ranks is {}, wanted at least 2: one rank sends nothing", op.ranks));
  const Losses losses = losses_of(op, machine, degrees);
  const std::string table = table_of(op, machine, losses);
  if (!words.plot.empty()) {
    const std::string svg = svg_of(op, machine, losses);
    base::write_file(words.plot, is_html ? plot_html(op.to_string() + ", losses", svg, table) : svg).or_throw();
  }
  write_result(with_schema("sim_characterise", json_of(op, machine, losses)), table, words.json).or_throw();
  return 0;
}

}  // namespace overlace::cli
