#include "src/gnn/sample/selection.h"

#include "src/base/ceil_div_pod.h"

namespace overlace::gnn {

base::Result<TraceSelection> TraceSelection::joined(const std::vector<const InputTrace*>& traces) {
  if (traces.empty()) return base::invalid_argument("traces: none, wanted at least one");
  TraceSelection out(traces[0]->num_vertices());
  for (size_t i = 0; i < traces.size(); ++i) {
    if (traces[i]->num_vertices() != out.num_vertices_)
      return base::invalid_argument("traces[{}] has {} vertices, wanted {}, as the first", i, traces[i]->num_vertices(),
                                    out.num_vertices_);
    for (int64_t b = 0; b < traces[i]->num_batches(); ++b) out.sources_.push_back({traces[i], b});
  }
  return out;
}

base::Result<TraceSelection> TraceSelection::of_rank(const InputTrace& trace, int rank, int num_ranks) {
  if (num_ranks < 1 || rank < 0 || rank >= num_ranks)
    return base::invalid_argument("rank is {}, wanted one in [0, {})", rank, num_ranks);
  TraceSelection out(trace.num_vertices());
  const int64_t nb = trace.num_batches(), steps = base::ceil_div(nb, num_ranks);
  for (int64_t step = 0; step < steps; ++step) out.sources_.push_back({&trace, (step * num_ranks + rank) % nb});
  return out;
}

}  // namespace overlace::gnn
