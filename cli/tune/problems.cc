#include <charconv>

#include "cli/problem.h"
#include "cli/tune/tune.h"
#include "cli/word_list.h"
#include "src/base/format.h"
#include "src/base/status.h"
#include "src/model/stack.h"
#include "src/spec/operators.h"

namespace overlace::cli {
namespace {

constexpr int64_t kMaxTokens = int64_t{1} << 24;

/// "gemm_rs:1000x8192x2048"
spec::OpSpec shape_of(const std::string& text, int ranks, DType dtype) {
  const auto refuse = [&] {
    return base::invalid_argument("--shape is {}, wanted OP:MxNxK such as gemm_rs:4096x8192x2048", text);
  };
  const size_t colon = text.find(':');
  if (colon == std::string::npos) refuse().or_throw();
  int64_t sizes[3] = {};
  const char* next = text.data() + colon;
  const char* const end = text.data() + text.size();
  for (int64_t& size : sizes) {
    if (next == end || (*next != ':' && *next != 'x')) refuse().or_throw();
    const auto [stop, code] = std::from_chars(next + 1, end, size);
    if (code != std::errc()) refuse().or_throw();
    next = stop;
  }
  if (next != end) refuse().or_throw();
  const std::string op = text.substr(0, colon);
  if (spec::find_operator(op) == nullptr)
    base::invalid_argument("--shape is {}, wanted an operator of {} before the colon", text, spec::operator_names())
        .or_throw();
  spec::OpSpec out = op_of(op, sizes[0], sizes[1], sizes[2], ranks, dtype_name(dtype), {}, ranks);
  return out;
}

void add(std::vector<TuneProblem>* list, spec::OpSpec op, const std::string& name) {
  (void)spec::make_schedule(op, std::string(spec::kLibrary), 1);  // refuses what none fits, before ranks are opened
  for (TuneProblem& known : *list) {
    if (spec::key_of(known.op) != spec::key_of(op)) continue;
    if (!name.empty() && known.name.find(name) == std::string::npos)
      known.name += (known.name.empty() ? "" : ", ") + name;
    return;
  }
  list->push_back({std::move(op), name});
}

}  // namespace

std::vector<TuneProblem> problems_of(const TuneWords& words, int ranks, DType dtype) {
  if (words.config.empty() != words.tokens.empty())
    base::invalid_argument("--config is {} and --tokens is {}, wanted both or none",
                           words.config.empty() ? "not given" : words.config,
                           words.tokens.empty() ? "not given" : words.tokens)
        .or_throw();
  if (words.config.empty() && words.shapes.empty())
    base::invalid_argument("neither --config nor --shape is given, wanted one of them: there is nothing to measure")
        .or_throw();
  std::vector<TuneProblem> out;
  if (!words.config.empty()) {
    const model::ModelConfig config = model::load_config(words.config).value();
    for (const int64_t tokens : numbers_of("--tokens", words.tokens, kMaxTokens)) {
      model::Problem problem;
      problem.layers = config.layers;
      problem.tokens = problem.sequence_length = tokens;
      problem.dtype = dtype;
      const std::vector<model::Site> sites = model::sites(config, problem, ranks).value();
      for (const model::Site& site : sites) add(&out, site.op, site.name);
    }
  }
  for (const std::string& shape : words.shapes) add(&out, shape_of(shape, ranks, dtype), "");
  return out;
}

}  // namespace overlace::cli
