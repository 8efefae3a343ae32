/* A process that outlives a training which is killed, and completes the metrics of its run. */
#ifndef DSC_CLI_WATCHER_H
#define DSC_CLI_WATCHER_H

/* Starts it; the result is for the functions below, -1 where it cannot be started. Call it before MPI is there
 * and before there are other threads. */
int dsc_watcher_start(void);
/* Names the directory of the run. */
void dsc_watcher_watch(int watcher, const char *directory);
/* The run has ended by itself: there is nothing to complete. */
void dsc_watcher_end(int watcher);

#endif
