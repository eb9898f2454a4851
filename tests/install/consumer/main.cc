#include <paceline/device.h>

int main() { return paceline::Device("cpu").is_cpu() ? 0 : 1; }
