/* The data of --calibrate: a folder that is a data set or holds some (input_N.pb), or folders of <input>.npy files. */
#ifndef LATHE_CALIBRATION_DATA_H
#define LATHE_CALIBRATION_DATA_H

#include "feeds.h"

struct lathe_calibration_data {
    char **paths; /* owned: folders, sorted by name with numbers in order */
    bool npy;
    unsigned count;
};
/* LATHE_INVALID when the folder holds neither. */
LATHE_NODISCARD enum lathe_status lathe_calibration_data_open(const char *folder, struct lathe_calibration_data *out,
                                                              struct lathe_diag *diag);
LATHE_NODISCARD enum lathe_status lathe_calibration_data_read(const struct lathe_calibration_data *data, unsigned index,
                                                              const struct lathe_artifact *a, struct lathe_feeds *out,
                                                              struct lathe_diag *diag);
void lathe_calibration_data_close(struct lathe_calibration_data *data);
#endif
