# cmake -DNAME=symbol -DINPUT=file -DOUTPUT=file.c -P embed.cmake: writes a C file with the bytes of a file as
# `const unsigned char NAME[]`, with a 0 at the end.
file(READ "${INPUT}" bytes HEX)
string(REGEX REPLACE "(................................................)" "\\1\n" bytes "${bytes}")
string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${bytes}")
file(WRITE "${OUTPUT}" "/* Made from ${INPUT}. */\nextern const unsigned char ${NAME}[];\nconst unsigned char ${NAME}[] = {\n${bytes}0x00};\n")
