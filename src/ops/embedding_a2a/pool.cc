#include "src/ops/embedding_a2a/pool.h"

#if defined(OVERLACE_HAS_CUDA)

#include <string>
#include <utility>
#include <vector>

#include "overlace/runtime.h"
#include "overlace/team.h"
#include "src/ops/common/check.h"
#include "src/ops/embedding_a2a/launch.h"
#include "src/runtime/state.h"
#include "src/spec/families/pool.h"

namespace overlace::ops {
namespace {

class PoolFindings final : public runtime::Findings {
 public:
  PoolFindings(Channel& channel, std::unique_ptr<PoolReport> made) : report(std::move(made)), channel_(channel) {}
  base::Status take() override {
    const std::optional<spec::BadBag> bad = report->take();
    if (!bad) return {};
    const Site site = site_of(channel_, "embedding_a2a");
    return refuse(site, "{}", spec::text_of(*bad, site.rank));
  }
  const std::unique_ptr<PoolReport> report;

 private:
  Channel& channel_;
};

PoolFindings* findings_of(Channel& channel) {
  const auto& all = channel.team().runtime().state().findings;
  const auto found = all.find(channel.pod().channel_id);
  return found == all.end() ? nullptr : static_cast<PoolFindings*>(found->second.get());
}

const std::string& text_at(const spec::Schedule& schedule, const char* name) {
  return std::get<std::string>(schedule.params.find(name)->second);
}

PoolMode mode_of(const spec::Schedule& schedule) {
  const std::string& name = text_at(schedule, "mode");
  return name == "sum" ? PoolMode::sum : name == "mean" ? PoolMode::mean : PoolMode::max;
}

PoolBounds bounds_of(const spec::Schedule& schedule) {
  constexpr std::pair<std::string_view, PoolBounds> kNames[] = {{"error", PoolBounds::error},
                                                                {"ignore", PoolBounds::ignore},
                                                                {"clamp", PoolBounds::clamp},
                                                                {"zero_row", PoolBounds::zero_row}};
  for (const auto& [name, bounds] : kNames)
    if (name == text_at(schedule, "bounds")) return bounds;
  return PoolBounds::none;
}

/// Features of the rank, from the schedule's tables.
std::vector<PoolFeature> features_of(const spec::Schedule& schedule, int rank, int64_t* first) {
  const auto table = [&](const char* name) -> const std::vector<int64_t>& {
    return schedule.tables.find(name)->second;
  };
  const std::vector<int64_t>& feature = table("feature");
  *first = feature[static_cast<size_t>(rank)];
  std::vector<PoolFeature> out;
  for (auto f = static_cast<size_t>(*first); f < static_cast<size_t>(feature[static_cast<size_t>(rank) + 1]); ++f)
    out.push_back({.slice = table("slice")[f],
                   .rows = table("table_rows")[f],
                   .padding = table("padding")[f],
                   .column = table("local")[f],
                   .width = table("width")[f]});
  return out;
}

}  // namespace

base::Status prepare_pool(Channel& channel) {
  RuntimeState& state = channel.team().runtime().state();
  if (findings_of(channel) != nullptr || state.backend->is_capturing(channel.stream())) return {};
  const base::Result<void*> words = state.backend->allocate_local(pool_words_bytes(), channel.stream());
  if (!words.ok()) return words.status();
  base::Result<std::unique_ptr<PoolReport>> report = PoolReport::make(state.backend->device(), *words);
  if (!report.ok()) {
    state.backend->free_local(*words);
    return report.status();
  }
  state.findings.emplace(channel.pod().channel_id, std::make_unique<PoolFindings>(channel, std::move(report).value()));
  return {};
}

exec::Body pool_on_gpu(Channel& channel, std::span<const TensorView> tensors) {
  return [&channel, tensors](const exec::BodyContext& context) -> base::Status {
    PoolFindings* const findings = findings_of(channel);
    if (findings == nullptr)
      return base::error(Errc::capture,
                         "{}: first use of this channel inside graph capture, wanted: one call before it",
                         context.schedule.op);
    int64_t first = 0;
    const std::vector<PoolFeature> features = features_of(context.schedule, context.rank, &first);
    return launch_pool({.features = features,
                        .first_feature = first,
                        .batch = std::get<int64_t>(context.schedule.params.find("M")->second),
                        .first_sample = context.first_row,
                        .weights = tensors[0],
                        .indices = tensors[1],
                        .offsets = tensors[2],
                        .factors = tensors[3],
                        .dst = context.writes[0][0],
                        .mode = mode_of(context.schedule),
                        .bounds = bounds_of(context.schedule),
                        .report = findings->report.get(),
                        .cuda_stream = context.stream.cuda_stream});
  };
}

}  // namespace overlace::ops

#endif
