// Traces of samples: what is accepted has batches whose ids stay where they belong.
// Sources: src/gnn/sample/trace
#include <cstring>

#include "src/gnn/sample/trace.h"
#include "src/io/alignment.h"
#include "tests/fuzz/fuzz.h"

namespace overlace::fuzz {

void run(std::string_view input) {
  io::AlignedBuffer buffer = io::AlignedBuffer::allocate(input.size() + 1).value();
  std::memcpy(buffer.data(), input.data(), input.size());
  const base::Result<gnn::TraceFile> trace = gnn::TraceFile::open({buffer.data(), input.size()}, "trace");
  if (!trace.ok()) return;
  for (int64_t b = 0; b < trace->num_batches(); ++b) {
    const base::Result<gnn::BatchView> batch = trace->read(b);
    if (!batch.ok()) continue;
    for (const uint32_t v : batch->inputs) FUZZ_REQUIRE(v < trace->num_vertices());
    for (const uint32_t v : batch->indices) FUZZ_REQUIRE(v < batch->inputs.size());
  }
}

}  // namespace overlace::fuzz
