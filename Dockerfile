# The binary is built outside (make image): nothing is pulled, and the image is that one file.
FROM scratch
COPY bin/guestprobe /guestprobe
# KubeVirt's qemu user, who owns the sockets of a virt-launcher pod.
USER 107:107
EXPOSE 9958
ENTRYPOINT ["/guestprobe"]
CMD ["run"]
