// Tables of published numbers: tests/golden/<source>/*.csv.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "src/base/status.h"

namespace overlace::study {

/// Lines that start with # say where the numbers are from; the first other line names the columns.
class Golden {
 public:
  /// Errc::corrupt with `source`, line, value got and wanted.
  static base::Result<Golden> parse(std::string_view text, std::string_view source);
  static base::Result<Golden> load(const std::string& path);

  size_t rows() const { return rows_.size(); }
  /// Precondition: the column exists and, for number(), the cell holds one (else Error, corrupt, with file and cell).
  double number(size_t row, std::string_view column) const;
  int64_t integer(size_t row, std::string_view column) const;
  const std::string& text(size_t row, std::string_view column) const;
  /// An empty cell: nothing was published.
  bool has(size_t row, std::string_view column) const { return !text(row, column).empty(); }

 private:
  std::string source_;
  std::vector<std::string> columns_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace overlace::study
