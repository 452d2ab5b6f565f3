// The HTML report of `overlace run`: one self-contained page with both timelines, the table of sites and the machine.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "src/base/json.h"
#include "src/base/trace.h"

namespace overlace::cli {

/// One communicating site of the layer: "qkv", "o_proj", ...
struct ReportSite {
  std::string name, op;  // "qkv", "ag_gemm"
  int64_t m = 0, n = 0, k = 0;
  double serial_us = 0, overlapped_us = 0, limit_us = 0;
  double hidden = 0;          // share of the communication that costs no time: 0 to 1; NaN where there is none
  std::string schedule, why;  // "hetero_unfused_1d q=4", reason in words
};

struct ReportTotal {
  double serial_us = 0, overlapped_us = 0, limit_us = 0;
  double hidden = 0;
};

/// Plain data; whoever fills it measured it. Times are medians unless `notes` says otherwise.
struct Report {
  std::string model;  // "Llama-3.1-8B"
  int ranks = 0;
  std::string backend;  // "cpu", "cuda_peer"
  std::string dtype;
  bool emulated = false;
  std::string emulation;                                 // "link 2 GB/s, 20 us"; shown wherever numbers are
  std::vector<std::pair<std::string, std::string>> run;  // layers, tokens, seed, command, ...
  std::vector<ReportSite> sites;
  ReportTotal total;
  bool ok = false;                 // every check passed
  double error = 0;                // largest error of the overlapped run against the fp64 oracle
  double baseline_error = 0;       // of the unfused run of the same precision
  base::Trace serial, overlapped;  // of the same work; times of each are shown from its own begin
  std::vector<std::pair<std::string, std::string>> machine;  // CPU, GPUs, driver, ...
  std::vector<std::string> notes;                            // what a reader must know about the numbers
};

/// What the page shows, for the template of pages (cli/report/page.h).
base::Json report_data(const Report& report);
/// The page: no external resource, light and dark, phone and desktop.
std::string html_report(const Report& report);

}  // namespace overlace::cli
