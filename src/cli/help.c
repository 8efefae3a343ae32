/* Help texts (wrapped to the terminal) and manual pages (roff) from one description. */
#include "cli/help.h"

#include "descent/version.h"

#include <string.h>

enum { HELP_COLUMN = 30 };

/* ---- on the terminal ---- */

void dsc_help_wrapped(FILE *out, const char *text, int at, int indent, int width) {
    int first = 1;
    while (*(text += strspn(text, " "))) {
        int length = (int)strcspn(text, " ");
        if (!first && at + 1 + length > width) {
            fprintf(out, "\n%*s", indent, "");
            at = indent;
            first = 1;
        }
        at += fprintf(out, "%s%.*s", first ? "" : " ", length, text);
        first = 0;
        text += length;
    }
    fputc('\n', out);
}

/* Paragraphs, which are separated by empty lines in `text`. */
static void write_paragraphs(FILE *out, const char *text, int width) {
    while (*text) {
        const char *end = strstr(text, "\n\n");
        int length = end ? (int)(end - text) : (int)strlen(text);
        char paragraph[2048];
        snprintf(paragraph, sizeof paragraph, "%.*s", length, text);
        dsc_help_wrapped(out, paragraph, 0, 0, width);
        fputc('\n', out);
        text = end ? end + 2 : text + length;
    }
}

/* The text after an option's name: " N", " fp32|bf16", " [auto|FILE]". */
static void argument_text(const dsc_option *option, char *text, size_t size) {
    size_t used = 0;
    text[0] = '\0';
    if (option->kind == DSC_OPTION_FLAG || option->kind == DSC_OPTION_NO_FLAG)
        return;
    if (option->kind != DSC_OPTION_CHOICE && option->kind != DSC_OPTION_WORD) {
        const char *what = option->kind == DSC_OPTION_ON_OFF ? "on|off" : option->placeholder;
        snprintf(text, size, option->bare ? " [%s]" : " %s", what);
        return;
    }
    for (int i = 0; option->choices[i] && used < size; i++)
        used += (size_t)snprintf(text + used, size - used, "%s%s", i ? "|" : " ", option->choices[i]);
}

/* The heading of entry `i`, and whether it is the first under it. */
static const char *heading(const dsc_option *options, int i, int *first) {
    int at = i;
    while (at > 0 && !options[at].group)
        at--;
    *first = 1;
    for (int before = 0; before < i && *first; before++)
        *first = !(options[before].group && strcmp(options[before].group, options[at].group) == 0);
    return options[at].group;
}

/* The number of the next option under this heading after `i`; -1: none. */
static int next_under(const dsc_option *options, const char *group, int i) {
    int first;
    while (options[++i].name)
        if (strcmp(heading(options, i, &first), group) == 0)
            return i;
    return -1;
}

static void write_option(FILE *out, const dsc_option *option, const void *values, int width) {
    char argument[160], value[128], help[512], text[700];
    argument_text(option, argument, sizeof argument);
    dsc_option_default_text(option, values, "--", value, sizeof value);
    dsc_option_expand(option->help, "--", help, sizeof help);
    int at = option->letter ? fprintf(out, "  -%c, --%s%s", option->letter, option->name, argument)
                            : fprintf(out, "  --%s%s", option->name, argument);
    if (at + 2 > HELP_COLUMN)
        at = fprintf(out, "\n") - 1;
    fprintf(out, "%*s", HELP_COLUMN - at, "");
    snprintf(text, sizeof text, *value ? "%s (default %s)" : "%s", help, value);
    dsc_help_wrapped(out, text, HELP_COLUMN, HELP_COLUMN, width);
}

void dsc_help_command(FILE *out, const dsc_cli_command *command, const void *values, int width) {
    char usage[256];
    if (width > 110)
        width = 110;
    fprintf(out, "descent %s: %s\n\n", command->name, command->summary);
    snprintf(usage, sizeof usage, "descent %s [OPTION]... %s", command->name,
             command->arguments ? command->arguments : "");
    fputs("Usage: ", out);
    dsc_help_wrapped(out, usage, 7, 7, width);
    fputc('\n', out);
    write_paragraphs(out, command->description, width);
    for (int i = 0, first; command->options[i].name; i++) {
        const char *group = heading(command->options, i, &first);
        if (!first)
            continue;
        fprintf(out, "%s%s:\n", i == 0 ? "" : "\n", group);
        for (int o = i; o >= 0; o = next_under(command->options, group, o))
            write_option(out, &command->options[o], values, width);
    }
    fprintf(out, "\nExamples:\n");
    for (const char *line = command->examples; *line;) {
        int length = (int)strcspn(line, "\n");
        fprintf(out, "  %.*s\n", length, line);
        line += length + (line[length] == '\n');
    }
}

void dsc_help_program(FILE *out) {
    fprintf(out, "descent %s trains deep networks on one core or on a cluster.\n\n", dsc_version());
    fprintf(out,
            "Usage: descent COMMAND [OPTION]...\n       mpirun -n RANKS descent COMMAND [OPTION]...\n\n");
    fprintf(out, "Commands:\n");
    for (int i = 0; dsc_cli_commands[i]; i++)
        fprintf(out, "  %-10s %s\n", dsc_cli_commands[i]->name, dsc_cli_commands[i]->summary);
    fprintf(out, "\n'descent help COMMAND' describes a command, 'descent --version' the build.\n");
    fprintf(out, "A first run that needs no files: descent train --model lenet --epochs 3\n");
}

/* ---- manual pages ---- */

static void write_char(FILE *out, char c) {
    if (c == '\\')
        fputs("\\e", out);
    else if (c == '-')
        fputs("\\-", out);
    else
        fputc(c, out);
}

/* Text inside a line, escaped: \ and -, and a . or ' that would start a request. */
static void write_roff(FILE *out, const char *text, int length) {
    if (length > 0 && (*text == '.' || *text == '\''))
        fputs("\\&", out);
    for (int i = 0; i < length; i++)
        write_char(out, text[i]);
}

static void write_roff_text(FILE *out, const char *text) {
    write_roff(out, text, (int)strlen(text));
}

static void write_roff_paragraphs(FILE *out, const char *text) {
    while (*text) {
        const char *end = strstr(text, "\n\n");
        int length = end ? (int)(end - text) : (int)strlen(text);
        fputs(".PP\n", out);
        write_roff(out, text, length);
        fputc('\n', out);
        text = end ? end + 2 : text + length;
    }
}

static void write_title(FILE *out, const char *page) {
    fprintf(out, ".TH %s 1 \"\" \"descent %s\" \"User Commands\"\n", page, dsc_version());
    fprintf(out, ".nh\n.ad l\n");
}

static void write_man_option(FILE *out, const dsc_option *option, const void *values) {
    char argument[160], value[128], range[96], help[512];
    argument_text(option, argument, sizeof argument);
    dsc_option_default_text(option, values, "--", value, sizeof value);
    dsc_option_expand(option->help, "--", help, sizeof help);
    dsc_option_range_text(option->range, range, sizeof range);
    fputs(".TP\n\\fB", out);
    if (option->letter)
        fprintf(out, "\\-%c\\fR, \\fB", option->letter);
    fputs("\\-\\-", out);
    write_roff_text(out, option->name);
    fputs("\\fR\\fI", out);
    write_roff_text(out, argument);
    fputs("\\fR\n", out);
    write_roff_text(out, help);
    fputs(*range ? ";\n" : ".\n", out);
    if (*range) {
        write_roff_text(out, range);
        fputs(".\n", out);
    }
    if (*value) {
        fputs("Default: ", out);
        write_roff_text(out, value);
        fputs(".\n", out);
    }
}

static void write_exit_status(FILE *out) {
    static const char *const lines[] = {"done", "failed while running",
                                        "the command line or an input file is wrong",
                                        "stopped by a signal after writing a checkpoint"};
    fputs(".SH EXIT STATUS\n", out);
    for (int i = 0; i < 4; i++)
        fprintf(out, ".TP\n.B %d\n%s\n", i, lines[i]);
}

static void write_examples(FILE *out, const char *examples) {
    fputs(".SH EXAMPLES\n.nf\n", out);
    for (const char *line = examples; *line;) {
        int length = (int)strcspn(line, "\n");
        write_roff(out, line, length);
        fputc('\n', out);
        line += length + (line[length] == '\n');
    }
    fputs(".fi\n", out);
}

static void write_see_also(FILE *out, const dsc_cli_command *except) {
    fputs(".SH SEE ALSO\n", out);
    const char *separator = "";
    if (except) {
        fputs(".BR descent (1)", out);
        separator = ",";
    }
    for (int i = 0; dsc_cli_commands[i]; i++)
        if (dsc_cli_commands[i] != except) {
            fprintf(out, "%s%s.BR descent\\-%s (1)", separator, *separator ? "\n" : "",
                    dsc_cli_commands[i]->name);
            separator = ",";
        }
    fputc('\n', out);
}

void dsc_man_command(FILE *out, const dsc_cli_command *command, const void *values) {
    char page[64];
    snprintf(page, sizeof page, "DESCENT\\-%s", command->name);
    for (char *p = page; *p; p++)
        if (*p >= 'a' && *p <= 'z')
            *p = (char)(*p - 'a' + 'A');
    write_title(out, page);
    fprintf(out, ".SH NAME\ndescent\\-%s \\- ", command->name);
    write_roff_text(out, command->summary);
    fprintf(out, "\n.SH SYNOPSIS\n.B descent %s\n[\\fIOPTION\\fR]... ", command->name);
    write_roff_text(out, command->arguments ? command->arguments : "");
    fputs("\n.SH DESCRIPTION\n", out);
    write_roff_paragraphs(out, command->description);
    fputs(".SH OPTIONS\n", out);
    for (int i = 0, first; command->options[i].name; i++) {
        const char *group = heading(command->options, i, &first);
        if (!first)
            continue;
        fputs(".SS ", out);
        write_roff_text(out, group);
        fputc('\n', out);
        for (int o = i; o >= 0; o = next_under(command->options, group, o))
            write_man_option(out, &command->options[o], values);
    }
    write_exit_status(out);
    write_examples(out, command->examples);
    write_see_also(out, command);
}

void dsc_man_program(FILE *out) {
    write_title(out, "DESCENT");
    fputs(".SH NAME\ndescent \\- train deep networks on one core or on a cluster\n"
          ".SH SYNOPSIS\n.B descent\n.I COMMAND\n[\\fIOPTION\\fR]...\n.PP\n"
          ".B mpirun \\-n\n.I RANKS\n.B descent\n.I COMMAND\n[\\fIOPTION\\fR]...\n.SH DESCRIPTION\n",
          out);
    write_roff_paragraphs(
        out, "descent trains image classifiers, in one process or over the ranks of an MPI job. Each command "
             "has a page of its own.\n\nOptions are given as --key value or --key=value. A list is given as "
             "35 75 90 or as 35,75,90. With --config FILE options are also read from a file of lines key = "
             "value, where # starts a comment; an option on the command line overrides the file. If an "
             "option is given twice, the last value counts.");
    fputs(".SH COMMANDS\n", out);
    for (int i = 0; dsc_cli_commands[i]; i++) {
        fprintf(out, ".TP\n.BR descent\\-%s (1)\n", dsc_cli_commands[i]->name);
        write_roff_text(out, dsc_cli_commands[i]->summary);
        fputc('\n', out);
    }
    fputs(".SH OPTIONS\n.TP\n.BR \\-h \", \" \\-\\-help\nshow the commands\n"
          ".TP\n.BR \\-V \", \" \\-\\-version\nshow version and build\n",
          out);
    write_exit_status(out);
    write_see_also(out, NULL);
}
