/* A process that outlives a training which is killed, and completes the metrics of its run. */
#ifndef DSC_CLI_WATCHER_H
#define DSC_CLI_WATCHER_H

/* Starts the process. The result is for the functions below; it is -1 when the process cannot be started. Call it
 * before MPI is initialised and before there are other threads. */
int dsc_watcher_start(void);
/* Sends the watcher the name of the run's directory. */
void dsc_watcher_watch(int watcher, const char *directory);
/* The run has ended by itself: there is nothing to complete. */
void dsc_watcher_end(int watcher);

#endif
