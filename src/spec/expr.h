// The parsed form of an expression and its fast evaluation with names bound to slots.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "overlace/schedule.h"

namespace overlace::spec {

enum class ExprOp : uint8_t { literal, name, table, add, sub, mul, div, mod, neg, min, max, ceildiv };

/// One step of a postfix program; `value` is a literal, or an index of a name or table.
struct ExprStep {
  ExprOp op;
  int64_t value;
};

struct Expr::Node {
  std::string text;
  std::vector<ExprStep> steps;
  std::vector<std::string> names, tables;
};

inline constexpr int kMaxExprDepth = 64;  // operand stack; the parser refuses deeper text

enum class ExprFault : uint8_t { none, inexact, zero_divisor, outside_table, overflow };
const char* fault_text(ExprFault fault);

/// Names known to bound expressions: each has a slot in `values`. Loop variables change their slots between
/// evaluations.
class Symbols {
 public:
  explicit Symbols(const Tables& tables) : tables_(tables) {}
  /// The slot of the name, made if new. Pointers into values() move.
  int slot(std::string_view name);
  int find(std::string_view name) const;  // -1 if unknown
  void erase(std::string_view name);
  int size() const { return static_cast<int>(values_.size()); }
  int64_t& value(int slot) { return values_[static_cast<size_t>(slot)]; }
  const int64_t* values() const { return values_.data(); }
  const std::vector<int64_t>* table(std::string_view name) const;

 private:
  const Tables& tables_;
  std::map<std::string, int, std::less<>> slots_;
  std::vector<int64_t> values_;
};

/// An expression with its names resolved; evaluates without look-ups. Lives no longer than the Symbols' tables.
class BoundExpr {
 public:
  /// Unknown names are left for `unknown()`.
  BoundExpr(const Expr& expr, const Symbols& symbols);
  const std::string& unknown() const { return unknown_; }
  int64_t eval(const int64_t* values, ExprFault* fault) const;
  /// The highest slot that it depends on; 0 if none.
  int last_slot() const;
  const std::string& text() const { return *text_; }
  const std::vector<ExprStep>& steps() const { return *steps_; }
  /// By the index that a step of a name or of a table has.
  const std::vector<int>& slots() const { return slots_; }
  const std::vector<const std::vector<int64_t>*>& tables() const { return tables_; }

 private:
  const std::string* text_;
  const std::vector<ExprStep>* steps_;
  std::vector<int> slots_;
  std::vector<const std::vector<int64_t>*> tables_;
  std::string unknown_;
};

}  // namespace overlace::spec
