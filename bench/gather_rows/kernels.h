// Kernels of the bench of gather_rows; they queue on a stream of CUDA.
#pragma once

#include <cstdint>

namespace overlace::bench {

/// Words `first` to first + count of the table.
void launch_fill_words(uint32_t* to, int64_t first, int64_t count, void* cuda_stream);
/// Ids of rows below num_rows.
void launch_draw_ids(int64_t* to, int64_t count, uint64_t num_rows, uint64_t seed, void* cuda_stream);
/// *wrong += words of out that are not those of the rows `ids`; without ids those of the table from `first` on.
void launch_count_wrong(const uint32_t* out, int64_t count, const int64_t* ids, int64_t row_words, int64_t first,
                        unsigned long long* wrong, void* cuda_stream);

}  // namespace overlace::bench
