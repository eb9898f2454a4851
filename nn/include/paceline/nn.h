#pragma once
// The network API in one header.

#include <paceline/autograd.h>
#include <paceline/initializer.h>
#include <paceline/layers.h>
#include <paceline/load_weights.h>
#include <paceline/loss.h>
#include <paceline/metric.h>
#include <paceline/models.h>
#include <paceline/module.h>
#include <paceline/parallel.h>
#include <paceline/progress.h>
#include <paceline/trainer.h>
