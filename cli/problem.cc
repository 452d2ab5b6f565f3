#include "cli/problem.h"

#include <charconv>
#include <limits>
#include <utility>

#include "overlace/error.h"
#include "src/base/format.h"
#include "src/base/status.h"
#include "src/spec/names.h"
#include "src/spec/operators.h"

namespace overlace::cli {
namespace {

// Any larger number is a slip of the keyboard; operations and tiles of these fit into 64 and 32 bits.
constexpr int64_t kMaxRows = int64_t{1} << 24, kMaxWidth = int64_t{1} << 19;

DType dtype_of(const std::string& name) {
  for (const DType t : {DType::fp64, DType::fp32, DType::fp16, DType::bf16}) {
    if (name == dtype_name(t)) return t;
  }
  throw_error(Errc::invalid_argument, "--dtype is " + name + ", wanted fp64, fp32, fp16 or bf16");
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
  for (const auto& [name, value] : {std::pair{"--m", m}, {"--n", n}, {"--k", k}}) {
    if (value < 1) throw_error(Errc::invalid_argument, base::format("{} is {}, wanted at least 1", name, value));
    const int64_t most = std::string_view(name) == "--m" ? kMaxRows : kMaxWidth;
    if (value > most)
      throw_error(Errc::invalid_argument, base::format("{} is {}, wanted at most {}", name, value, most));
  }
  if (out.ranks < 1 || out.ranks > max_ranks)
    throw_error(Errc::invalid_argument, base::format("--ranks is {}, wanted 1 to {}", out.ranks, max_ranks));
  return out;
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
