/* descent completion: scripts for bash and zsh, from the tables of options. */
#include "cli/cli.h"
#include "cli/help.h"
#include "cli/support.h"
#include "descent/model.h"
#include "descent/topology.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const dsc_option options[] = {DSC_CLI_COMMON_OPTIONS};

static void init(void *values) {
    memset(values, 0, sizeof(dsc_cli_common));
}

/* Calls `write` for every command, after its init has completed its table of options. */
static dsc_status each_command(void (*write)(const dsc_cli_command *command)) {
    for (int i = 0; dsc_cli_commands[i]; i++) {
        const dsc_cli_command *command = dsc_cli_commands[i];
        void *values = calloc(1, command->values_size);
        if (!values)
            return DSC_CLI_FAIL(DSC_E_MEMORY, "no memory for the options of '%s'", command->name);
        command->init(values);
        write(command);
        free(values);
    }
    return DSC_OK;
}

static void print_words(const char *const *words) {
    for (int i = 0; words[i]; i++)
        printf("%s%s", i ? " " : "", words[i]);
}

/* The words that an option takes; NULL: it takes other values. For some options these are the names that the library
 * knows, although more are allowed. */
static const char *const *words_of(const dsc_option *o) {
    static const char *const on_off[] = {"on", "off", NULL};
    if (o->kind == DSC_OPTION_ON_OFF)
        return on_off;
    if (strcmp(o->name, "model") == 0)
        return dsc_zoo_names();
    if (strcmp(o->name, "graph") == 0)
        return dsc_topology_names();
    return o->choices;
}

static int takes_file(const dsc_option *o) {
    return o->kind == DSC_OPTION_STRING || o->kind == DSC_OPTION_CONFIG;
}

static void print_commands(void) {
    for (int i = 0; dsc_cli_commands[i]; i++)
        printf("%s ", dsc_cli_commands[i]->name);
}

/* 1 when a command takes one of several fixed words after its options, as in "[a|b]", unlike "FILE|DIR". */
static int has_words(const dsc_cli_command *command) {
    const char *text = command->arguments;
    return text && strchr(text, '|') && islower((unsigned char)text[strspn(text, "[")]);
}

static void print_argument_words(const dsc_cli_command *command) {
    for (const char *p = command->arguments; *p; p++)
        if (!strchr("[]", *p))
            putchar(*p == '|' ? ' ' : *p);
}

/* ---- bash ---- */

static void write_bash(const dsc_cli_command *command) {
    printf("    %s)\n        case $prev in\n", command->name);
    for (const dsc_option *o = command->options; o->name; o++)
        if (words_of(o)) {
            printf("        --%s) words='", o->name);
            print_words(words_of(o));
            printf("' ;;\n");
        } else if (takes_file(o)) {
            printf("        --%s) files=1 ;;\n", o->name);
        }
    printf("        *) words='");
    if (has_words(command)) {
        print_argument_words(command);
        putchar(' ');
    }
    for (const dsc_option *o = command->options; o->name; o++)
        printf("%s--%s", o == command->options ? "" : " ", o->name);
    printf("' ;;\n        esac ;;\n");
}

static dsc_status print_bash(void) {
    printf("# bash completion of descent\n"
           "_descent() {\n"
           "    local current=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} words='' files=\n"
           "    COMPREPLY=()\n"
           "    if [ \"$COMP_CWORD\" = 1 ]; then\n"
           "        COMPREPLY=($(compgen -W '");
    print_commands();
    printf("help --help --version' -- \"$current\"))\n        return\n    fi\n    case ${COMP_WORDS[1]} in\n"
           "    help) words='");
    print_commands();
    printf("' ;;\n");
    DSC_CLI_TRY(each_command(write_bash));
    printf("    esac\n"
           "    if [ -n \"$files\" ]; then\n"
           "        COMPREPLY=($(compgen -f -- \"$current\"))\n"
           "    else\n"
           "        COMPREPLY=($(compgen -W \"$words\" -- \"$current\"))\n"
           "    fi\n"
           "}\n"
           "complete -o default -F _descent descent\n");
    return DSC_OK;
}

/* ---- zsh ---- */

/* Text in the brackets of a specification, inside single quotes. */
static void print_zsh_text(const char *text) {
    char expanded[512];
    for (const char *p = dsc_option_expand(text, "--", expanded, sizeof expanded); *p; p++)
        if (*p == '\'')
            printf("'\\''");
        else if (strchr("[]:\\", *p))
            printf("\\%c", *p);
        else
            putchar(*p);
}

static void write_zsh(const dsc_cli_command *command) {
    printf("    %s)\n        _arguments \\\n", command->name);
    for (const dsc_option *o = command->options; o->name; o++) {
        int flag = o->kind == DSC_OPTION_FLAG || o->kind == DSC_OPTION_NO_FLAG;
        printf("            '--%s[", o->name);
        print_zsh_text(o->help);
        printf("]");
        if (!flag && words_of(o)) {
            printf(":value:(");
            print_words(words_of(o));
            printf(")");
        } else if (!flag) {
            printf(":value:%s", takes_file(o) ? "_files" : "");
        }
        printf("' \\\n");
    }
    if (has_words(command)) {
        printf("            '*:value:(");
        print_argument_words(command);
        printf(")' ;;\n");
    } else {
        printf("            '*:file:_files' ;;\n");
    }
}

static dsc_status print_zsh(void) {
    printf("#compdef descent\n_descent() {\n    local commands=(");
    for (int i = 0; dsc_cli_commands[i]; i++) {
        printf("'%s:", dsc_cli_commands[i]->name);
        print_zsh_text(dsc_cli_commands[i]->summary);
        printf("' ");
    }
    printf("'help:describe a command')\n"
           "    if ((CURRENT == 2)) || [[ CURRENT -eq 3 && $words[2] == help ]]; then\n"
           "        _describe command commands\n        return\n    fi\n"
           "    local command=$words[2]\n    shift words\n    ((CURRENT--))\n    case $command in\n");
    DSC_CLI_TRY(each_command(write_zsh));
    printf("    esac\n}\n_descent \"$@\"\n");
    return DSC_OK;
}

static dsc_status run(dsc_cli_session *session, void *values, const dsc_option_set *set) {
    const char *shell = dsc_option_positional(set, 0);
    (void)values;
    if (!shell || dsc_option_positional_count(set) != 1)
        return DSC_CLI_FAIL(DSC_E_INVALID, "completion needs the name of a shell: bash or zsh");
    if (!dsc_cli_prints(session))
        return DSC_OK;
    if (strcmp(shell, "bash") == 0)
        return print_bash();
    if (strcmp(shell, "zsh") == 0)
        return print_zsh();
    return DSC_CLI_FAIL(DSC_E_INVALID, "no completion for the shell '%s': there is one for bash and zsh",
                        shell);
}

const dsc_cli_command dsc_cli_completion = {
    .name = "completion",
    .summary = "print a completion script for bash or zsh",
    .arguments = "bash|zsh",
    .description =
        "Prints a script that lets a shell complete the commands, options and choices of descent. The "
        "installed package holds both scripts where the shells look for them.",
    .examples = "source <(descent completion bash)\n"
                "descent completion zsh > ~/.zfunc/_descent\n",
    .options = options,
    .values_size = sizeof(dsc_cli_common),
    .init = init,
    .run = run,
};
