#pragma once
// A small line chart as PNG: for whoever wants to see a sweep without further programs.

#include <string>
#include <utility>
#include <vector>

namespace paceline::sim {

struct Curve {
  std::string name;
  std::vector<std::pair<double, double>> points;  // x above 0
};

struct Panel {
  std::string title;
  bool logarithmic = false;  // y; x always is
  std::vector<Curve> curves;
};

// Panels side by side. Throws IoError where the file cannot be written.
void write_plot(const std::string& file, const std::string& x_name, const std::vector<Panel>& panels);

}  // namespace paceline::sim
