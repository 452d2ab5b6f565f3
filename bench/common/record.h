// Records: what every line of bench/results/*.jsonl has in common (bench/record.schema.json).
#pragma once

#include <string>
#include <vector>

#include "bench/common/arguments.h"
#include "src/base/json.h"
#include "src/base/status.h"

namespace overlace::bench {

/// median, p10, p90, min and the samples themselves, all in us. Precondition: at least one sample.
base::Json time_json(const std::vector<double>& samples_us);

/// What all records of one run share.
struct RecordHead {
  const RunFacts& run;
  base::Json machine;
};
base::Json new_record(const RecordHead& head, const std::string& workload, base::Json shape,
                      const std::string& competitor);

/// Adds lines to run.out, each with the hash of its other fields as `id`.
base::Status append_records(const RunFacts& run, const std::vector<base::Json>& records);

/// "Intel(R) Xeon(R) Processor"; cores that this process may use; "Linux 6.1.0".
std::string cpu_name();
int usable_cores();
std::string kernel_name();

}  // namespace overlace::bench
