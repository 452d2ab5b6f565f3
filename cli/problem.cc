#include "cli/problem.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <utility>

#include "overlace/error.h"
#include "src/base/file.h"
#include "src/base/format.h"
#include "src/base/status.h"
#include "src/context/machine.h"
#include "src/spec/names.h"
#include "src/spec/operators.h"

namespace overlace::cli {
namespace {

constexpr int kUsualRanks = 4;  // without a machine and a number
// Any larger number is a slip of the keyboard; operations and tiles of these fit into 64 and 32 bits.
constexpr int64_t kMaxRows = int64_t{1} << 24, kMaxWidth = int64_t{1} << 19;

DType dtype_of(const std::string& name) {
  for (const DType t : {DType::fp64, DType::fp32, DType::fp16, DType::bf16}) {
    if (name == dtype_name(t)) return t;
  }
  throw_error(Errc::invalid_argument, "--dtype is " + name + ", wanted fp64, fp32, fp16 or bf16");
}

template <class T>
T number_of(std::string_view name, const std::string& text, const char* wanted) {
  T out{};
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), out);
  if (code != std::errc() || end != text.data() + text.size())
    base::invalid_argument("--field {} is '{}', wanted {}", name, text, wanted).or_throw();
  return out;
}

spec::Param field_value(const spec::FieldDef& field, const std::string& text) {
  switch (field.type) {
    case spec::FieldType::integer:
      return number_of<int64_t>(field.name, text, "an integer");
    case spec::FieldType::real:
      return number_of<double>(field.name, text, "a number");
    case spec::FieldType::flag:
      if (text != "true" && text != "false")
        base::invalid_argument("--field {} is '{}', wanted true or false", field.name, text).or_throw();
      return text == "true";
    case spec::FieldType::text:
      break;
  }
  return text;
}

}  // namespace

int64_t parse_size(const std::string& option, const std::string& text, bool may_be_none) {
  int64_t count = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), count);
  const std::string_view unit(end, static_cast<size_t>(text.data() + text.size() - end));
  const int shift = unit == "KiB" ? 10 : unit == "MiB" ? 20 : unit == "GiB" ? 30 : unit == "TiB" ? 40 : 0;
  if (code != std::errc() || count < (may_be_none ? 0 : 1) || (shift == 0 && !unit.empty()) ||
      count > std::numeric_limits<int64_t>::max() >> shift)
    base::invalid_argument("{} is {}, wanted bytes such as 8GiB, 512MiB or 1000000", option, text).or_throw();
  return count << shift;
}

spec::OpSpec op_of(const std::string& op, int64_t m, int64_t n, int64_t k, int ranks, const std::string& dtype,
                   const spec::Machine& machine, int max_ranks) {
  spec::OpSpec out;
  out.op = op;
  out.m = m;
  out.n = n;
  out.k = k;
  out.ranks = ranks == 0 ? machine.ranks : ranks;
  out.dtype = out.out_dtype = dtype_of(dtype);
  const spec::OperatorDef* def = spec::find_operator(op);
  const int64_t least = def == nullptr || def->pose == nullptr ? 1 : 0;  // fields may say what a size does elsewhere
  for (const auto& [name, value] : {std::pair{"--m", m}, {"--n", n}, {"--k", k}}) {
    if (value < least)
      throw_error(Errc::invalid_argument, base::format("{} is {}, wanted at least {}", name, value, least));
    const int64_t most = std::string_view(name) == "--m" ? kMaxRows : kMaxWidth;
    if (value > most)
      throw_error(Errc::invalid_argument, base::format("{} is {}, wanted at most {}", name, value, most));
  }
  if (out.ranks < 1 || out.ranks > max_ranks)
    throw_error(Errc::invalid_argument, base::format("--ranks is {}, wanted 1 to {}", out.ranks, max_ranks));
  return out;
}

void set_fields(spec::OpSpec* op, const std::vector<std::string>& words) {
  const spec::OperatorDef* def = spec::find_operator(op->op);
  if (def == nullptr) return;  // which make_schedule refuses
  for (const std::string& word : words) {
    const size_t equals = word.find('=');
    const std::string name = word.substr(0, equals);
    if (equals == std::string::npos)
      base::invalid_argument("--field is '{}', wanted NAME=VALUE or NAME=@FILE", word).or_throw();
    std::string text = word.substr(equals + 1);
    if (text.starts_with("@")) text = base::read_file(text.substr(1)).value();
    const auto field =
        std::find_if(def->fields.begin(), def->fields.end(), [&](const spec::FieldDef& f) { return f.name == name; });
    if (field == def->fields.end()) base::invalid_argument("--field: {} has no field '{}'", def->name, name).or_throw();
    op->fields[name] = field_value(*field, text);
  }
  if (def->pose != nullptr) def->pose(op);
}

spec::Activation activation_of(const std::string& name) {
  for (const spec::Activation a : {spec::Activation::none, spec::Activation::swiglu}) {
    if (name == spec::name_of(a)) return a;
  }
  throw_error(Errc::invalid_argument, "--activation is " + name + ", wanted none or swiglu");
}

spec::Exchange exchange_of(const std::string& name) {
  for (const spec::Exchange e : {spec::Exchange::rows, spec::Exchange::cols}) {
    if (name == spec::name_of(e)) return e;
  }
  throw_error(Errc::invalid_argument, "--exchange is " + name + ", wanted rows or cols");
}

spec::Machine machine_of(const std::string& name, int ranks) {
  if (!name.empty()) return spec::find_machine(name);
  return context::find_machine({.is_gpu = true, .device = "NVIDIA H200", .ranks = ranks == 0 ? kUsualRanks : ranks}, {})
      .value()
      .machine;
}

double share_of_priors(const spec::Machine& machine) {
  const std::string text = spec::to_json(machine);
  const auto count = [&](std::string_view word) {
    double n = 0;
    for (size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) ++n;
    return n;
  };
  const double priors = count("\"prior\""), measured = count("\"measured\"");
  return priors + measured > 0 ? priors / (priors + measured) : 1;
}

std::string machine_line(const spec::Machine& machine) {
  return base::format("machine {} (digest {}, {}, {:.0f} % of its numbers are priors)", machine.name,
                      spec::digest(machine).substr(0, 8), machine.date.empty() ? "no date" : machine.date,
                      100 * share_of_priors(machine));
}

spec::CheckReport check_report(const spec::Schedule& schedule, const spec::Machine& machine) {
  return spec::check(schedule, machine, {.ranks = {}, .coverage = spec::gives_result(schedule)});
}

}  // namespace overlace::cli
